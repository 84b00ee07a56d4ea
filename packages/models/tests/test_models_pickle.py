"""Pickle checkpoints: refused without the flag, read with it, and never code from them."""

import json
import os

import pytest
import torch
from llm_models import (
    CorruptFile,
    DuplicateTensor,
    MissingShard,
    MissingTensor,
    PickleRefused,
    load_model,
    resolve,
)
from safetensors.torch import load_file

INDEX = "pytorch_model.bin.index.json"


def load(folder):
    return load_model(resolve(str(folder), allow_pickle=True), dtype=torch.float32, device="cpu")


@pytest.fixture
def tensors(make_reference, tmp_path):
    """The tensors of a model whose safetensors are gone."""
    make_reference("llama").save_pretrained(tmp_path)
    tensors = {name: tensor.clone() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    (tmp_path / "model.safetensors").rename(tmp_path / "moved")
    return tensors


@pytest.fixture
def folder(tensors, tmp_path):
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    return tmp_path


@pytest.fixture
def sharded(tensors, tmp_path):
    names = list(tensors)
    parts = {"pytorch_model-00001-of-00002.bin": names[:9], "pytorch_model-00002-of-00002.bin": names[9:]}
    for file, held in parts.items():
        torch.save({name: tensors[name] for name in held}, tmp_path / file)
    places = {name: file for file, held in parts.items() for name in held}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": places}))
    return tmp_path


def as_loaded(folder):
    """What the same tensors give as safetensors."""
    (folder / "moved").rename(folder / "model.safetensors")
    return load_model(resolve(str(folder)), dtype=torch.float32, device="cpu").state_dict()


@pytest.mark.parametrize("layout", ["folder", "sharded"])
def test_the_flag_loads_them_like_safetensors(layout, request):
    folder = request.getfixturevalue(layout)
    assert resolve(str(folder), allow_pickle=True).kind == "pickle"
    ours, theirs = load(folder).state_dict(), as_loaded(folder)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_files_of_the_oldest_kind_load_too(tensors, tmp_path):
    torch.save(tensors, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(load(tmp_path).state_dict()["embedding.weight"], tensors["model.embed_tokens.weight"])


@pytest.mark.parametrize("layout", ["folder", "sharded"])
def test_without_the_flag_they_are_refused(layout, request):
    folder = request.getfixturevalue(layout)
    with pytest.raises(PickleRefused, match="allow_pickle=True") as caught:
        load_model(resolve(str(folder)), dtype=torch.float32, device="cpu")
    assert "\n" not in str(caught.value)


def test_safetensors_win(folder):
    (folder / "moved").rename(folder / "model.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"never looked at")
    assert resolve(str(folder), allow_pickle=True).kind == "safetensors"
    load(folder)


class Evil:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


def test_code_in_a_file_is_not_run(tensors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(tensors | {"extra": Evil()}, "pytorch_model.bin")
    with pytest.raises(PickleRefused, match="could run code"):
        load(tmp_path)
    assert not (tmp_path / "made-by-a-pickle").exists()


@pytest.mark.parametrize("content", [b"", b"PK", b"\x80\x02nonsense", b"text"])
def test_garbage(content, folder):
    (folder / "pytorch_model.bin").write_bytes(content)
    with pytest.raises((CorruptFile, PickleRefused), match=r"pytorch_model\.bin"):
        load(folder)


def test_a_cut_file(folder):
    file = folder / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:-3000])
    with pytest.raises(CorruptFile, match="truncated"):
        load(folder)


@pytest.mark.parametrize("content", [[1, 2], {"a": 3}, {1: torch.ones(1)}])
def test_other_content(content, folder):
    torch.save(content, folder / "pytorch_model.bin")
    with pytest.raises(CorruptFile):
        load(folder)


def test_a_missing_shard(sharded):
    (sharded / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(MissingShard, match="pytorch_model-00002"):
        load(sharded)


def test_a_tensor_in_two_shards(sharded, tensors):
    torch.save(tensors, sharded / "pytorch_model-00002-of-00002.bin")
    with pytest.raises(DuplicateTensor, match="pytorch_model-00001"):
        load(sharded)


def test_a_shard_that_lacks_a_tensor(sharded, tensors):
    name = list(tensors)[-1]
    torch.save({n: tensors[n] for n in list(tensors)[9:-1]}, sharded / "pytorch_model-00002-of-00002.bin")
    with pytest.raises(MissingTensor, match="in no file") as caught:
        load(sharded)
    assert caught.value.tensor == name
