"""`llm-stack plan`: its table, its JSON and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from llm_stack_server.cli import main

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


def test_the_table_adds_up_to_the_device(folder, capsys):
    assert main(["plan", folder, "--gpu", "H200", "--max-model-len", "8192"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Qwen3ForCausalLM, bfloat16, on NVIDIA H200 141 GB"
    sizes = {line[:22].strip(): float(line.split()[-2]) for line in lines if line.endswith("GiB")}
    device = sizes.pop("the device")
    assert sizes["weights"] == pytest.approx(1.11, abs=0.01)
    assert sum(sizes.values()) == pytest.approx(device, abs=0.06)
    assert "  114,688 bytes of cache" in next(line for line in lines if line.startswith("a token adds"))
    assert "8,192 tokens" in next(line for line in lines if line.startswith("longest context"))


def test_json_holds_the_same(folder, capsys):
    assert main(["plan", folder, "--tensor-parallel-size", "2", "--graphs", "none", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["gpu"]["name"] == "h200"
    assert plan["kv_bytes_per_token"] == 114688 // 2
    assert plan["memory"]["graphs_bytes"] == 0
    assert plan["memory"]["kv_bytes"] == plan["num_blocks"] * plan["page_bytes"]
    assert {"1024", "40960"} <= set(plan["concurrency"])
    assert [floor["rows"] for floor in plan["floors"]] == [1, 16, 64, 256]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [(["--gpu", "abacus"], "gpu"), (["--max-model-len", "50000"], "max_model_len")],
)
def test_errors_are_one_line(folder, capsys, arguments, field):
    assert main(["plan", folder, *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"llm-stack: error: {field}: ")
