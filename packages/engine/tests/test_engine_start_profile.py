"""Where a start's seconds go: the tree of spans, and the profile of real starts."""

import asyncio
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from llm_engine.start_profile import (
    IMPORTED_S,
    Phase,
    Span,
    StartRecorder,
    build_profile,
    now_s,
    process_started_s,
)

TINY = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 128,
    "eos_token_id": 299,
}
OPTIONS = {
    "load_format": "dummy",
    "device": "cpu",
    "dtype": "float32",
    "kv_cache_bytes": 1 << 20,
    "threads": 1,
    "progress": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    (path / "config.json").write_text(json.dumps(TINY))
    return str(path)


def leaves(profile):
    return [(phase.name, round(phase.seconds, 6)) for phase in profile.phases if phase.is_leaf]


def test_spans_become_a_tree_that_adds_up():
    spans = [
        Span("last", 8.0, 10.0),
        Span("inner", 2.0, 3.0),
        Span("outer", 1.0, 6.0),
        Span("deep", 2.5, 3.0),
        Span("second", 3.0, 5.0),
    ]
    profile = build_profile(spans)
    assert profile.phases == (
        Phase("outer", 0, 5.0, is_leaf=False),
        Phase("inner", 1, 1.0, is_leaf=False),
        Phase("deep", 2, 0.5, is_leaf=True),
        Phase("other", 2, 0.5, is_leaf=True),
        Phase("second", 1, 2.0, is_leaf=True),
        Phase("other", 1, 2.0, is_leaf=True),
        Phase("last", 0, 2.0, is_leaf=True),
        Phase("other", 0, 2.0, is_leaf=True),
    )
    assert profile.wall_s == sum(seconds for _, seconds in leaves(profile)) == 9.0


def test_overlaps_are_counted_once():
    assert leaves(build_profile([Span("a", 0.0, 3.0), Span("b", 2.0, 5.0)])) == [("a", 3.0), ("b", 2.0)]
    clipped = build_profile([Span("outer", 0.0, 4.0), Span("inner", 1.0, 9.0)])
    assert sum(seconds for _, seconds in leaves(clipped)) == clipped.wall_s == 9.0


def test_the_table_has_a_line_a_phase_and_the_sum():
    profile = build_profile([Span("a", 0.0, 1.0), Span("b", 0.0, 0.25), Span("c", 1.0, 4.0)])
    assert profile.table().splitlines() == [
        "seconds  share  phase",
        "  1.000  25.0%  a",
        "  0.250   6.2%    b",
        "  0.750  18.8%    other",
        "  3.000  75.0%  c",
        "  4.000  100.0%  from the process's start to here",
    ]


def test_a_span_is_recorded_even_if_it_raises():
    recorder = StartRecorder()
    with pytest.raises(KeyError), recorder.span("fails"):
        raise KeyError
    (span,) = recorder.spans
    assert span.name == "fails"
    assert 0 <= span.end_s - span.begin_s < 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says when a process was started")
def test_the_process_s_start_is_known():
    started_s = process_started_s()
    assert started_s is not None
    assert started_s <= IMPORTED_S <= now_s()
    before_s = now_s()
    code = "from llm_engine.start_profile import process_started_s; print(process_started_s())"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert before_s - 0.02 <= float(printed.stdout) <= now_s()


def test_an_offline_engine_accounts_for_its_whole_start(folder, capsys):
    from llm_engine import LLM

    began_s = now_s()
    with LLM(folder, profile_start=True, **OPTIONS) as llm:
        took_s = now_s() - began_s
        profile = llm.start_profile
        assert llm.stats().requests_added == llm.stats().steps == 0  # the first request is not counted
    names = [phase.name for phase in profile.phases]
    wanted = ["imports", "model files", "config", "tokenizer", "workers and devices", "weights"]
    wanted += ["sizing, with a step of the largest size", "KV cache", "first token", "first decode steps"]
    assert [name for name in names if name in wanted] == wanted
    after_imports = sum(phase.seconds for phase in profile.phases if phase.name not in ("python", "imports"))
    assert after_imports == pytest.approx(took_s, abs=0.1)
    assert capsys.readouterr().err.endswith("from the process's start to here\n")


def test_without_the_option_nothing_is_printed_nor_run(folder, capsys):
    from llm_engine import LLM

    with LLM(folder, **OPTIONS) as llm:
        assert "first token" not in [phase.name for phase in llm.start_profile.phases]
    assert capsys.readouterr().err == ""


def test_a_core_process_is_part_of_its_front_end_s_start(folder, capsys):
    from llm_engine import AsyncLLM, EngineOptions

    async def start():
        began_s = time.perf_counter()
        engine = await AsyncLLM.start(EngineOptions(model=folder, profile_start=True, **OPTIONS))
        took_s = time.perf_counter() - began_s
        await engine.shutdown()
        return engine.start_profile, took_s

    profile, took_s = asyncio.run(start())
    phases = {(phase.name, phase.depth): phase for phase in profile.phases}
    assert phases["core process", 0].seconds == pytest.approx(took_s, abs=0.2)
    inside = [phase for phase in profile.phases if phase.depth == 1]
    assert sum(phase.seconds for phase in inside) == pytest.approx(phases["core process", 0].seconds)
    assert {"imports", "weights", "first token", "first decode steps"} <= {phase.name for phase in inside}
    assert "core process" in capsys.readouterr().err


def test_imports_stay_light():
    """`import llm_engine` brings no torch; an engine brings torch, and nothing heavy beside it."""
    code = """
import sys
import llm_engine
early = [name for name in ("torch", "triton", "transformers", "zmq") if name in sys.modules]
import torch
before = set(sys.modules)
from llm_engine.llm import LLM
from llm_engine.async_llm import AsyncLLM
late = {name.split(".")[0] for name in set(sys.modules) - before}
dynamo = [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules]
print(early, sorted(late & {"triton", "transformers", "sympy", "pandas", "scipy"}), dynamo)
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert printed.stdout.split("\n")[0] == "[] [] []"


needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

COMPILE = """
import sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from llm_engine.worker.kernel_cache import use_kernel_cache

use_kernel_cache(sys.argv[1])
kernel = __import__("double_kernel").double
source = ASTSource(fn=kernel, signature={"x": "*fp32", "N": "constexpr"}, constexprs={"N": 64})
made = triton.compile(source, target=GPUTarget("cuda", 90, 32))
print(len(made.asm["cubin"]))
"""
KERNEL = """
import triton
import triton.language as tl

@triton.jit
def double(x, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(x + at, 2 * tl.load(x + at))
"""


@needs_triton
def test_a_moved_kernel_cache_still_serves(tmp_path):
    """Where a kernel would be compiled anew, an assembler that fails would be asked."""
    (tmp_path / "double_kernel.py").write_text(KERNEL)
    (tmp_path / "compile_it.py").write_text(COMPILE)
    env = {key: value for key, value in os.environ.items() if not key.startswith("TRITON_")}
    env["TRITON_HOME"] = str(tmp_path / "home")

    def compile_with(cache, **more):
        command = [sys.executable, str(tmp_path / "compile_it.py"), str(cache)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={**env, **more})

    first = compile_with(tmp_path / "first")
    assert first.returncode == 0, first.stderr
    names = {path.suffix for path in (tmp_path / "first").rglob("*") if path.is_file()}
    assert ".cubin" in names
    shutil.move(tmp_path / "first", tmp_path / "second")
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "second").rglob("*")}
    second = compile_with(tmp_path / "second")
    assert second.stdout == first.stdout, second.stderr
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "second").rglob("*")}
    assert after == stamps  # nothing was compiled anew, nothing written
    assert not (tmp_path / "first").exists()


@needs_triton
def test_triton_is_prepared_in_the_background():
    code = """
from llm_engine.worker.triton_prefetch import start_prefetch
start_prefetch().join()
from triton.runtime.cache import triton_key
print(triton_key.cache_info().currsize)
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert printed.stdout == "1\n"


@pytest.mark.parametrize(
    ("option", "variables", "expected"),
    [
        (None, {}, "{home}/.cache/llm-stack/triton"),
        (None, {"XDG_CACHE_HOME": "/x"}, "/x/llm-stack/triton"),
        (None, {"XDG_CACHE_HOME": "/x", "TRITON_CACHE_DIR": "/t"}, "/t"),
        ("/o", {"XDG_CACHE_HOME": "/x", "TRITON_CACHE_DIR": "/t"}, "/o"),
    ],
)
def test_the_kernel_cache_s_folder(monkeypatch, option, variables, expected):
    from llm_engine.worker.kernel_cache import use_kernel_cache

    for name in ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TRITON_CACHE_MANAGER"):
        monkeypatch.setenv(name, "")  # so that undoing removes what is set here
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    path = use_kernel_cache(option)
    assert path == Path(expected.format(home=Path.home()))
    assert os.environ["TRITON_CACHE_DIR"] == str(path)
    assert os.environ["TRITON_CACHE_MANAGER"].endswith(":RelocatableCache")
