"""Loading safetensors against the disk's own rate: the files' bytes with a cold page cache, in one process.

Two figures a round, in turns: *raw*, the same files read by parallel `pread` into buffers that are thrown
away (the best of several numbers of threads), and *ours*, every tensor copied to its place in fresh memory of
the device by `SafetensorsSource`. Before each read the files are dropped from the page cache. The ratio is of
the medians.

    python benchmarks/load_weights.py FOLDER [--device cuda] [--dtype bfloat16] [--rounds 5] [--json FILE]
    python benchmarks/load_weights.py --make 4 FOLDER   # first writes 4 GiB of the 8B model's shapes

On the CPU ours also pays for the fresh memory itself: on a machine whose processors are busy with other work
that shows, not the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from llm_models.loading.safetensors_files import SafetensorsSource
from llm_models.loading.transfer import PIECE_BYTES, THREADS, Transfer
from safetensors.torch import save_file

RAW_THREADS = (4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Rates in GB/s (10^9 bytes)."""

    bytes: int
    device: str
    dtype: str
    threads: int
    raw: float
    raw_threads: int
    ours: float
    ratio: float


def drop_from_cache(files: Sequence[Path]) -> None:
    """Has the kernel forget the files' pages."""
    for file in files:
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def raw_seconds(files: Sequence[Path], threads: int) -> float:
    """Reads all files in pieces by `threads` threads, each into one buffer."""
    drop_from_cache(files)
    pieces = [(file, at) for file in files for at in range(0, file.stat().st_size, PIECE_BYTES)]
    descriptors = {file: os.open(file, os.O_RDONLY) for file in files}
    started = time.perf_counter()

    def read(mine: Sequence[tuple[Path, int]]) -> None:
        buffer = memoryview(bytearray(PIECE_BYTES))
        for file, at in mine:
            os.preadv(descriptors[file], [buffer], at)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, [pieces[thread::threads] for thread in range(threads)]))
    seconds = time.perf_counter() - started
    for descriptor in descriptors.values():
        os.close(descriptor)
    return seconds


def our_seconds(
    folder: Path, files: Sequence[Path], device: str, dtype: torch.dtype | None, threads: int
) -> float:
    """Opens the checkpoint and copies each tensor into fresh memory of the device."""
    drop_from_cache(files)
    started = time.perf_counter()
    source = SafetensorsSource(folder, transfer=Transfer(threads=threads))
    places = {
        name: torch.empty(info.shape, dtype=dtype or source.read(name).dtype, device=device)
        for name, info in source.tensors.items()
    }
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda item: source.copy_into(*item), places.items()))
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - started


def make(folder: Path, gibibytes: float) -> None:
    """Writes layers of the 8B Llama shape in shards, until there are that many bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {"q": (4096, 4096), "k": (1024, 4096), "v": (1024, 4096), "o": (4096, 4096),
              "gate": (14336, 4096), "up": (14336, 4096), "down": (4096, 14336), "norm": (4096,)}  # fmt: skip
    layer_bytes = 2 * sum(torch.Size(shape).numel() for shape in shapes.values())
    weight_map, generator = {}, torch.Generator().manual_seed(0)
    noise = torch.randint(0, 1 << 30, (1 << 24,), generator=generator, dtype=torch.int32)
    for layer in range(max(1, round(gibibytes * 2**30 / layer_bytes))):
        name = f"model-{layer:05}.safetensors"
        tensors = {}
        for part, shape in shapes.items():
            count = torch.Size(shape).numel()
            flat = noise.view(torch.int16).repeat(-(-count // (2 * len(noise))))[:count]
            tensors[f"layers.{layer}.{part}"] = flat.view(torch.bfloat16).reshape(shape).clone()
        save_file(tensors, folder / name)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def measure(folder: Path, *, device: str, dtype: str | None, rounds: int, threads: int) -> Result:
    """Raw reads and ours in turns; medians."""
    files = sorted(folder.glob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    wanted = None if dtype is None else getattr(torch, dtype)
    if device.startswith("cuda"):
        torch.zeros(1, device=device)
    raw: dict[int, list[float]] = {count: [] for count in RAW_THREADS}
    ours = []
    for number in range(rounds):
        for count in RAW_THREADS:
            raw[count].append(raw_seconds(files, count))
        ours.append(our_seconds(folder, files, device, wanted, threads))
        latest = ", ".join(f"{count}: {size / raw[count][-1] / 1e9:.2f}" for count in RAW_THREADS)
        print(f"round {number + 1}: raw GB/s by threads {latest}; ours {size / ours[-1] / 1e9:.2f}")
    best = min(RAW_THREADS, key=lambda count: statistics.median(raw[count]))
    raw_rate, our_rate = (size / statistics.median(times) / 1e9 for times in (raw[best], ours))
    return Result(
        bytes=size,
        device=device,
        dtype=dtype or "stored",
        threads=threads,
        raw=round(raw_rate, 3),
        raw_threads=best,
        ours=round(our_rate, 3),
        ratio=round(our_rate / raw_rate, 3),
    )


def main() -> None:
    """Runs the benchmark that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", type=float, metavar="GIB", help="write random weights first")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default=None, help="cast to it; default: as stored")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.make is not None:
        make(arguments.folder, arguments.make)
    result = measure(
        arguments.folder,
        device=arguments.device,
        dtype=arguments.dtype,
        rounds=arguments.rounds,
        threads=arguments.threads,
    )
    print(json.dumps(asdict(result)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(asdict(result), indent=1))


if __name__ == "__main__":
    main()
