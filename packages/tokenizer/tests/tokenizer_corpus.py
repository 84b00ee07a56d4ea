"""Texts to encode: many scripts, code, emoji, white space, random bytes and Unicode, special spellings."""

import os
import random
import unicodedata
from pathlib import Path

from tokenizer_samples import texts

FIXED = [
    "",
    " ",
    "   ",
    "\n",
    "\r\n\r\n",
    "\t\t\n  \n x",
    " lead",
    "trail  ",
    "a\n  ",
    "a \n\n",
    "Hello, world! It's 1234567 o'clock; DON'T WE'LL i'Ve",
    "Привет мир, как дела? Żółć, Größe, naïve, \u017f's \u004b",
    "你好\uff0c世界\uff01今天天气怎么样\uff1f日本語のテキスト、カタカナ。 한국어 문장입니다.",
    "مرحبا بالعالم، كيف حالك؟ שלום עולם नमस्ते दुनिया สวัสดีชาวโลก",
    "🌶️ 👩‍🚀 👨‍👩‍👧‍👦 🇨🇿 🏳️‍🌈 e\u0301 a\u0308\u0323 \u1e69",
    "def f(x):\n    return {k: v**2 for k, v in x.items() if v != 0}  # done\n",
    '#include <stdio.h>\nint main() {\n\tprintf("%d\\n", 3 << 2);\n}\n',
    '{"a": [1, 2.5e-3, null], "b": "\\u00e9"}<div class="x">&nbsp;</div>',
    "\u00a0\u2003\u3000\u200b\u2028\u0085\u180e\ufeff|",
    "!!??...((([[[---===>>>",
    "1 12 123 1234 12345 ½ ² ① \u0661\u0662\u0663 \uff11\uff12",
    "x" * 300 + " " * 120 + "\n" * 40,
    "\ufffd\ufffe\U0010ffff",
]


def fresh_seed():
    """Another seed at each run; a failing assertion shows it, and TO\u004bENIZER_TEST_SEED sets it."""
    return int(os.environ.get("TO\u004bENIZER_TEST_SEED", random.SystemRandom().randrange(2**31)))


def corpus(seed, count=150, specials=()):
    """Texts by seed; `specials` are spellings to put between words."""
    rng = random.Random(seed)
    source = Path(__file__).read_text(encoding="utf-8").splitlines(keepends=True)
    made = [*FIXED, *texts(count, seed)]
    for _ in range(count // 3):
        start = rng.randrange(len(source))
        made.append("".join(source[start : start + rng.randint(1, 6)]))
        made.append("".join(_any_character(rng) for _ in range(rng.randint(1, 25))))
        made.append(rng.randbytes(rng.randint(1, 40)).decode("utf-8", errors="replace"))
    for special in rng.sample(sorted(specials), min(len(specials), 30)):
        before, after = rng.choice(["", " ", "a", "\n", "▁"]), rng.choice(["", " ", "b", "\n", "<"])
        made.append(f"x{before}{special}{after}y {special}{special}")
        made.append(special)
        made.append(special[:-1] + " " + special[1:])
    return made


def nfc(text):
    return unicodedata.normalize("NFC", text)


def _any_character(rng):
    while True:
        code = rng.choice([rng.randrange(0x110000), rng.randrange(0x3000), rng.randrange(0x250)])
        if not 0xD800 <= code < 0xE000:
            return chr(code)
