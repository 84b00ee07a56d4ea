"""Mesh arithmetic, the in-process executor, the codec and the README."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from llm_distributed import (
    AXES,
    CallFailed,
    CodecError,
    DeviceMesh,
    InProcessExecutor,
    MeshError,
    MsgpackCodec,
    NotRunning,
    ReadyResult,
    StartFailed,
    StepFailed,
)
from llm_distributed.mesh import coordinates, rank_groups

README = Path(__file__).parents[1] / "README.md"


def test_a_mesh_of_one_does_nothing():
    mesh, x = DeviceMesh(), torch.ones(3)
    assert mesh.all_reduce(x, "tp") is x
    assert mesh.all_gather(x, "ep") is x
    assert mesh.broadcast(x, "dp", 0) is x
    mesh.barrier("cp")
    assert [mesh.size(axis) for axis in AXES] == [1] * 5
    assert [mesh.rank(axis) for axis in AXES] == [0] * 5


class _BrokenDevice:
    """A worker whose device fails: asking for a step's state raises as well as waiting for it."""

    def __init__(self, mesh):
        pass

    def execute(self, plan):
        return self

    def done(self):
        raise RuntimeError("illegal memory access")

    result = done


def test_a_fault_of_the_device_is_told_by_the_result_alone():
    executor = InProcessExecutor(_BrokenDevice)
    executor.start()
    pending = executor.submit(None)
    assert pending.done()
    for _ in range(2):
        with pytest.raises(StepFailed, match="illegal memory access"):
            pending.result()


def test_groups_partition_the_ranks_along_every_axis():
    axes = {"dp": 2, "pp": 3, "cp": 1, "tp": 4, "ep": 1}
    places = [tuple(coordinates(axes, rank).values()) for rank in range(24)]
    assert places == sorted(set(places))
    assert rank_groups(axes, "tp")[0] == [0, 1, 2, 3]
    for axis in AXES:
        groups = rank_groups(axes, axis)
        assert sorted(rank for group in groups for rank in group) == list(range(24))
        for group in groups:
            assert [coordinates(axes, rank)[axis] for rank in group] == list(range(axes[axis]))
            others = {tuple(v for k, v in coordinates(axes, rank).items() if k != axis) for rank in group}
            assert len(others) == 1


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("axis", lambda: DeviceMesh({"xx": 2})),
        ("tp", lambda: DeviceMesh({"tp": 0})),
        ("rank", lambda: DeviceMesh({}, 1)),
        ("groups", lambda: DeviceMesh({"tp": 2})),
        ("axis", lambda: DeviceMesh().all_reduce(torch.ones(1), "rows")),
        ("source", lambda: DeviceMesh().broadcast(torch.ones(1), "tp", 1)),
    ],
)
def test_bad_meshes_are_named(field, make):
    with pytest.raises(MeshError) as caught:
        make()
    assert caught.value.field == field


class Doubler:
    def __init__(self, mesh, factor=2):
        self.factor = factor
        self.closed = False

    def execute(self, plan):
        if plan is None:
            raise ValueError("no plan")
        return ReadyResult(plan * self.factor)

    def fail(self):
        raise KeyError("thing")

    def close(self):
        self.closed = True


def test_in_process_runs_steps_and_calls():
    executor = InProcessExecutor(Doubler, {"factor": 3})
    with pytest.raises(NotRunning):
        executor.check()
    executor.start()
    pending = executor.submit(7)
    assert pending.done()
    assert pending.result() == 21
    with pytest.raises(StepFailed, match="ValueError: no plan"):
        executor.submit(None).result()
    with pytest.raises(CallFailed) as caught:
        executor.call("fail")
    assert caught.value.error_type == "KeyError"
    assert isinstance(caught.value.__cause__, KeyError)
    assert executor.submit(1).result() == 3
    executor.shutdown()
    with pytest.raises(NotRunning):
        executor.submit(1)


def test_in_process_start_errors_look_like_those_of_a_process():
    with pytest.raises(StartFailed, match="TypeError"):
        InProcessExecutor(Doubler, {"nonsense": 1}).start()


def test_the_codec_brings_values_back():
    codec = MsgpackCodec()
    value = {"a": [1, -2.5, None, True, "ü", b"\x00\xff"], "b": {"c": []}}
    assert codec.decode(codec.encode(value)) == value
    for array in (np.arange(6, dtype=np.int32).reshape(2, 3), np.zeros((0, 2), np.float32), np.array([True])):
        (back,) = codec.decode(codec.encode([array]))
        assert back.dtype == array.dtype
        assert np.array_equal(back, array)


@pytest.mark.parametrize(
    "value", [object(), {1, 2}.__iter__(), np.array(["x"]), np.int64(3), 2**70, lambda: 0]
)
def test_the_codec_refuses_other_types(value):
    with pytest.raises(CodecError):
        MsgpackCodec().encode(value)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01", b"\xc7\x01\x05\x00", b"\xc7\x02\x01\xff\x00"])
def test_the_codec_refuses_broken_bytes(data):
    with pytest.raises(CodecError):
        MsgpackCodec().decode([memoryview(data)])


def test_the_readme_example_runs(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[3.0, 5.0]"
