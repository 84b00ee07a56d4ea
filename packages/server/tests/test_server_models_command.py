"""`llm-stack models`: the list of architectures, and the check of a checkpoint that is not loaded."""

import json

import pytest
import torch
import transformers
from llm_stack_server.cli import main


@pytest.fixture
def folder(tmp_path):
    config = transformers.Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=128,
        dtype=torch.bfloat16,
    )
    transformers.Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    return tmp_path


def rewritten(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def report(folder, capsys):
    code = main(["models", "check", str(folder), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_native_architectures_are_listed(capsys):
    assert main(["models", "--standing", "native"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["Qwen3ForCausalLM", "decoder", "native"] for line in lines)
    assert any(line.split()[:3] == ["BertModel", "pooling", "native"] for line in lines)
    assert all(line.split()[2] == "native" for line in lines)


def test_a_good_checkpoint_is_described(folder, capsys):
    code, found = report(folder, capsys)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert code == 0
    assert found["problem"] is None
    assert found["num_parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert found["weight_bytes"] == 2 * found["num_parameters"]
    assert found["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 2
    assert found["caches"] == [["full", 2]]
    assert found["ranks"] == [2, 4]


def test_the_report_is_readable(folder, capsys):
    assert main(["models", "check", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "Qwen3ForCausalLM (native, decoder)" in text
    assert "tensor parallel   2, 4" in text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"hidden_size": 64}, "shape"),
        ({"num_hidden_layers": 3, "layer_types": None}, "missing"),
        ({"num_hidden_layers": 1, "layer_types": None}, "no place"),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "rope_type"),
        ({"architectures": ["Qwen3ForCausalML"]}, "ForCausalML"),
    ],
)
def test_what_speaks_against_loading_is_named(folder, capsys, changes, says):
    rewritten(folder, **changes)
    code, found = report(folder, capsys)
    assert code == 1
    assert says in found["problem"]


def test_a_cut_file_is_named(folder, capsys):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    code, found = report(folder, capsys)
    assert code == 1
    assert "model.safetensors" in found["problem"]


def test_a_missing_folder_is_one_line(tmp_path, capsys):
    assert main(["models", "check", str(tmp_path / "nothing"), "--offline"]) == 1
    assert capsys.readouterr().err.startswith("llm-stack: error: model ")
