"""Owns one rank of shared encoder-decoders, run as a process: argv are rank, ranks and a folder of models."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from llm_distributed.mesh import connect
from llm_models import load_encoder_decoder, resolve
from test_models_encoder_decoder import CrossRun

if __name__ == "__main__":
    rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), ranks)
    mesh = connect({"tp": ranks}, rank, store, backend="gloo", timeout_s=300.0)
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        model = load_encoder_decoder(resolve(str(path)), dtype=torch.float32, device="cpu", mesh=mesh)
        asked = torch.load(path / "asked.pt")
        run = CrossRun(model)
        run.open({"a": asked["input"]})
        parts = [run.step({"a": asked["tokens"][:6]})["a"], run.step({"a": asked["tokens"][6:]})["a"]]
        if rank == 0:
            torch.save({"logits": torch.cat(parts), "caches": model.caches}, path / "found.pt")
    dist.destroy_process_group()
