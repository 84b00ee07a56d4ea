"""Workers that run in the rank processes of the tests."""

import os
import time

import torch
from llm_distributed import ReadyResult


class Adder:
    """Steps add a number on every rank; the ranks share a running total."""

    def __init__(self, mesh, start=0):
        self.mesh = mesh
        self.total = torch.tensor([float(start)])
        self.seen = []

    def execute(self, plan):
        if plan.get("raise_on") in (self.mesh.global_rank, "all"):
            raise ValueError(f"bad plan {plan['step']}")
        if plan.get("late_error"):
            return LateError()
        self.seen.append(plan["step"])
        self.total += self.mesh.all_reduce(torch.tensor([float(plan["add"])]), "tp")
        return ReadyResult({"step": plan["step"], "total": self.total.item()})

    def history(self):
        return self.seen

    def where(self, axis):
        return [self.mesh.rank(axis), self.mesh.size(axis), os.getpid()]

    def decide(self, value):
        """Every rank has its own wish; rank 0's counts."""
        return self.mesh.broadcast(torch.tensor([value + self.mesh.global_rank]), "tp", 0).item()

    def gather(self):
        x = torch.full((2, 1), float(self.mesh.global_rank))
        return self.mesh.all_gather(x, "tp", dim=1).numpy()

    def fail(self, rank):
        if self.mesh.global_rank == rank:
            raise KeyError("no such thing")
        return rank

    def sleep(self, seconds):
        time.sleep(seconds)


class LateError:
    def done(self):
        return True

    def result(self):
        raise RuntimeError("the device found it later")


def make_adder(mesh, **kwargs):
    return Adder(mesh, **kwargs)


def make_nothing(mesh, rank):
    if mesh.global_rank == rank:
        raise FileNotFoundError("no weights here")
    return Adder(mesh)


def exit_early(mesh):
    if mesh.global_rank == 1:
        os._exit(7)
    time.sleep(60)
