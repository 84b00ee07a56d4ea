"""The choice of back ends: priority, override, what is missing, and what a call pays for it."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from llm_kernels import ops
from llm_kernels.errors import BackendUnavailable, UnknownOp
from llm_kernels.registry import Backend, Op

CPU = torch.device("cpu")
README = Path(__file__).parents[1] / "README.md"


def _unavailable():
    raise BackendUnavailable("not built")


def _op() -> Op:
    return Op(
        "toy",
        [
            Backend(name="torch", load=lambda: lambda: "torch"),
            Backend(name="missing", load=_unavailable, priority=30),
            Backend(
                name="small", load=lambda: lambda: "small", priority=20, accepts=lambda _d, size: size <= 64
            ),
            Backend(name="half", load=lambda: lambda: "half", priority=10, dtypes=frozenset({torch.float16})),
            Backend(
                name="elsewhere", load=lambda: lambda: "elsewhere", priority=40, devices=frozenset({"cuda"})
            ),
            Backend(name="debug", load=lambda: lambda: "debug", priority=-1),
        ],
    )


@pytest.mark.parametrize(
    ("dtype", "size", "chosen"),
    [
        (torch.float32, 64, "small"),
        (torch.float32, 65, "torch"),
        (torch.float16, 65, "half"),
        (torch.float16, 8, "small"),
    ],
)
def test_the_best_that_applies_and_loads_is_chosen(dtype, size, chosen):
    op = _op()
    assert op.pick(CPU, dtype, size)() == chosen
    assert op.choose(CPU, dtype, size).name == chosen


def test_a_missing_back_end_is_said_in_one_line(caplog):
    with caplog.at_level(logging.WARNING, logger="llm_kernels"):
        op = _op()
        for _ in range(3):
            op.pick(CPU, torch.float32, 64)
    assert [r.message for r in caplog.records] == [
        "toy on cpu, torch.float32, size 64: slower without back end missing: not built"
    ]


def test_force_overrides_and_never_falls_back():
    op = _op()
    with op.force("torch"):
        assert op.pick(CPU, torch.float32, 8)() == "torch"
        with op.force("debug"):
            assert op.pick(CPU, torch.float32, 8)() == "debug"
        assert op.pick(CPU, torch.float32, 8)() == "torch"
    assert op.pick(CPU, torch.float32, 8)() == "small"
    with op.force("half"), pytest.raises(BackendUnavailable, match="does not take"):
        op.pick(CPU, torch.float32, 8)
    with op.force("missing"), pytest.raises(BackendUnavailable, match="not built"):
        op.pick(CPU, torch.float32, 8)
    with pytest.raises(BackendUnavailable, match="has no back end 'nothing'"), op.force("nothing"):
        pass
    assert op.pick(CPU, torch.float32, 8)() == "small"


def test_no_back_end_is_an_error():
    op = Op("toy", [Backend(name="x", load=_unavailable)])
    with pytest.raises(BackendUnavailable, match="no back end for toy"):
        op.pick(CPU, torch.float32, 8)


def test_the_listing_gives_reasons():
    states = {s.backend: s for s in _op().describe()}
    assert [s.backend for s in _op().describe()][:2] == ["elsewhere", "missing"]
    assert states["missing"].reason == "not built"
    assert not states["missing"].available
    assert states["torch"].available


def test_every_op_has_its_reference():
    described = ops.describe_backends()
    for op in {s.op for s in described}:
        assert "torch" in ops.available_backends(op)
        with ops.use_backend(op, "torch"):
            assert ops.selected(op, "cpu", torch.float32) == "torch"


def test_unknown_op():
    with pytest.raises(UnknownOp, match="no op 'nothing'; there are: paged_attention"):
        ops.available_backends("nothing")


def test_a_choice_costs_about_a_microsecond():
    op, x = _op(), torch.zeros(2, 64)
    op.pick(x.device, x.dtype, x.shape[-1])
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(1000):
            op.pick(x.device, x.dtype, x.shape[-1])
        best = min(best, (time.perf_counter() - start) * 1e3)
    assert best < 5.0  # us; about 0.6 measured, the rest is room for slow machines


def test_without_library_and_triton_every_op_still_works():
    script = """
        import sys
        sys.modules["triton"] = None
        sys.modules["tvm_ffi"] = None
        import torch
        from llm_kernels import ops
        out = torch.empty(2, 8)
        ops.rms_norm(out, torch.ones(2, 8), torch.ones(8), 0.0)
        assert (out == 1).all()
        assert ops.available_backends("paged_attention") == ["by_row", "torch"]
        print(next(s.reason for s in ops.describe_backends() if s.backend == "cpp"))
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "apache-tvm-ffi cannot be imported" in result.stdout


def test_readme_examples_run():
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    for block in blocks:
        exec(compile(block, str(README), "exec"), {"__name__": "readme"})
