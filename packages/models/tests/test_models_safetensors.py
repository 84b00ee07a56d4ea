"""Safetensors loading: fused placement, shards, casting, and a typed one-line error for every fault."""

import json
import struct

import pytest
import torch
from llm_models import (
    CorruptFile,
    DuplicateTensor,
    MissingShard,
    MissingTensor,
    UnexpectedTensor,
    WeightError,
    WrongDtype,
    WrongShape,
    load_model,
    resolve,
)
from safetensors.torch import load_file, save_file

QUERY = "model.layers.1.self_attn.q_proj.weight"


def load(folder, dtype=torch.float32):
    return load_model(resolve(str(folder)), dtype=dtype, device="cpu")


@pytest.fixture
def folder(make_reference, tmp_path):
    make_reference("llama").save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def sharded(make_reference, tmp_path):
    make_reference("llama").save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    return tmp_path


def edit(folder, change):
    """Rewrites model.safetensors after `change` has edited its tensors."""
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file)


def assert_error(kind, folder, *mentions):
    with pytest.raises(kind) as caught:
        load(folder)
    assert type(caught.value) is kind
    assert isinstance(caught.value, WeightError)
    message = str(caught.value)
    assert "\n" not in message
    for mention in mentions:
        assert mention in message
    return caught.value


def test_tensors_land_in_the_fused_parameters(folder):
    theirs = load_file(folder / "model.safetensors")
    ours = dict(load(folder).named_parameters())
    prefix = "model.layers.1.self_attn."
    qkv = torch.cat([theirs[f"{prefix}{part}_proj.weight"] for part in "qkv"])
    assert torch.equal(ours["layers.1.attention.input.weight"], qkv)
    gate_up = torch.cat([theirs[f"model.layers.1.mlp.{part}_proj.weight"] for part in ("gate", "up")])
    assert torch.equal(ours["layers.1.mlp.input.weight"], gate_up)
    assert torch.equal(ours["head.weight"], theirs["lm_head.weight"])
    assert sum(p.numel() for p in ours.values()) == sum(t.numel() for t in theirs.values())


def test_tied_models_have_one_embedding(make_reference, tmp_path):
    make_reference("llama-mha-tied").save_pretrained(tmp_path)
    names = dict(load(tmp_path).named_parameters())
    assert "head.weight" not in names


def test_shards_load_like_one_file(make_reference, folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("sharded")
    make_reference("llama").save_pretrained(other, max_shard_size="20KB")
    assert (other / "model.safetensors.index.json").is_file()
    whole, parts = load(folder).state_dict(), load(other).state_dict()
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_cast_on_load(folder, dtype):
    full, half = load(folder).state_dict(), load(folder, dtype).state_dict()
    assert all(torch.equal(half[name], full[name].to(dtype)) for name in full)


def test_a_progress_bar_is_shown_when_asked_for(folder, capsys):
    load_model(resolve(str(folder)), dtype=torch.float32, device="cpu", progress=True)
    assert "Loading weights" in capsys.readouterr().err
    load(folder)
    assert capsys.readouterr().err == ""


def test_missing_tensor(folder):
    edit(folder, lambda tensors: tensors.pop(QUERY))
    error = assert_error(MissingTensor, folder, QUERY, str(folder))
    assert error.tensor == QUERY


def test_unexpected_tensor(folder):
    edit(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.sinks": torch.ones(4)}))
    assert_error(UnexpectedTensor, folder, "model.layers.0.self_attn.sinks", "model.safetensors")


def test_an_untied_config_over_tied_weights_misses_the_head(folder):
    edit(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert_error(MissingTensor, folder, "lm_head.weight")


def test_harmless_leftovers_are_ignored(make_reference, tmp_path):
    make_reference("llama-mha-tied").save_pretrained(tmp_path)
    leftovers = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "model.rotary_emb.inv_freq": torch.ones(4),
        "lm_head.weight": torch.ones(96, 32),
    }
    edit(tmp_path, lambda tensors: tensors.update(leftovers))
    load(tmp_path)


def test_wrong_shape(folder):
    edit(folder, lambda tensors: tensors.update({QUERY: torch.ones(16, 32)}))
    assert_error(WrongShape, folder, QUERY, "[16, 32]", "[32, 32]", "model.safetensors")


def test_transposed_shape_of_the_same_size(folder):
    name = "model.layers.0.mlp.down_proj.weight"
    edit(folder, lambda tensors: tensors.update({name: tensors[name].T.contiguous()}))
    assert_error(WrongShape, folder, name)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.float8_e4m3fn])
def test_wrong_dtype(folder, dtype):
    edit(folder, lambda tensors: tensors.update({QUERY: tensors[QUERY].to(dtype)}))
    assert_error(WrongDtype, folder, QUERY, "model.safetensors")


def test_truncated_data_names_the_first_lost_tensor(folder):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    error = assert_error(CorruptFile, folder, "model.safetensors", "bytes")
    header_size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + header_size])
    begin, end = header[error.tensor]["data_offsets"]
    assert 8 + header_size + begin <= len(content) // 2 < 8 + header_size + end


@pytest.mark.parametrize("size", [0, 5, 8, 100])
def test_truncated_header(folder, size):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    assert_error(CorruptFile, folder, "model.safetensors")


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 64,
        struct.pack("<Q", 2) + b"{]" + b"\0" * 8,
        struct.pack("<Q", 2) + b"[]",
        b"version https://git-lfs",
    ],
)
def test_garbage_instead_of_weights(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    assert_error(CorruptFile, folder, "model.safetensors")


def test_no_weights_at_all(folder):
    (folder / "model.safetensors").unlink()
    assert_error(MissingShard, folder, "model.safetensors")


def test_missing_shard(sharded):
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert_error(MissingShard, sharded, shard.name)


def test_truncated_shard(sharded):
    shard = sorted(sharded.glob("model-*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-4])
    assert_error(CorruptFile, sharded, shard.name)


def test_the_index_places_a_tensor_wrongly(sharded):
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    home = content["weight_map"][QUERY]
    other = next(name for name in content["weight_map"].values() if name != home)
    content["weight_map"][QUERY] = other
    index.write_text(json.dumps(content))
    assert_error(MissingTensor, sharded, QUERY, other)


@pytest.mark.parametrize(
    ("content", "mention"),
    [
        ("{", "JSON"),
        ("[]", "weight_map"),
        ('{"weight_map": {}}', "weight_map"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "not a file name"),
        ('{"weight_map": {"a": 3}}', "not a file name"),
    ],
)
def test_broken_index(sharded, content, mention):
    (sharded / "model.safetensors.index.json").write_text(content)
    assert_error(CorruptFile, sharded, "model.safetensors.index.json", mention)


def test_a_tensor_in_two_shards(sharded):
    first, second = sorted(sharded.glob("model-*.safetensors"))[:2]
    twice = next(iter(load_file(first)))
    save_file({**load_file(second), twice: load_file(first)[twice]}, second)
    assert_error(DuplicateTensor, sharded, twice, second.name)
