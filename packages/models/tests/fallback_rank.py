"""Owns one rank of shared fallback models, run as a process: argv are rank, ranks and a folder of models."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from llm_distributed.mesh import connect
from llm_models.fallback import load_fallback
from llm_models.fallback.probe_steps import LENGTHS, run_steps
from llm_models.files import resolve

if __name__ == "__main__":
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), ranks)
    mesh = connect({"tp": ranks}, rank, store, backend="gloo", timeout_s=300.0)
    ids = {row: torch.arange(3, 3 + count) for row, count in LENGTHS.items()}
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        model = load_fallback(resolve(str(path)), dtype=torch.float32, device="cpu", mesh=mesh)
        found = {"kind": model.verdict.kind, "heads": model.caches[0].num_kv_heads}
        found["logits"] = run_steps(model, ids)
        if rank == 0:
            torch.save(found, path / "found.pt")
    dist.destroy_process_group()
