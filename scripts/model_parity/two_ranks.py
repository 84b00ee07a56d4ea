"""Owns two processes that share a model between them; knows nothing about checks or references."""

import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

import torch
import torch.multiprocessing as multiprocessing
from llm_distributed.mesh import connect
from llm_models import ModelError, load_model, resolve
from torch.distributed import FileStore

from .paged_run import PagedRun

RANKS = 2


class TwoRanks:
    """A pair of processes that load a folder with TP = 2 and run token ids; use as a context."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self._pipes = []
        self._processes = []
        for rank in range(RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, store, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def logits(self, folder: Path, parts: list[list[int]]) -> torch.Tensor:
        """Logits of one sequence, computed part by part, float32 [tokens, vocabulary].

        Raises:
            RuntimeError: A rank failed; the message is its error.
        """
        for pipe in self._pipes:
            pipe.send((str(folder), parts))
        answers = [pipe.recv() for pipe in self._pipes]
        for answer in answers:
            if isinstance(answer, str):
                raise RuntimeError(answer)
        if not torch.equal(answers[0], answers[1]):
            raise RuntimeError("the ranks' logits differ")
        return answers[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join()
        self._folder.cleanup()


def _serve(rank: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    mesh = connect({"tp": RANKS}, rank, FileStore(store, RANKS), backend="gloo", timeout_s=60.0)
    while True:
        folder, parts = pipe.recv()
        try:
            model = load_model(resolve(folder), dtype=torch.float32, device="cpu", mesh=mesh)
            run = PagedRun(model)
            pipe.send(torch.cat([run.step({"a": part})["a"] for part in parts]))
        except (ModelError, RuntimeError, ValueError) as error:
            pipe.send(f"{type(error).__name__}: {error}")
