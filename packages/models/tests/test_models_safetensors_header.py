"""Our check of safetensors headers against that of the `safetensors` library, on good and damaged files."""

import json
import struct

import numpy as np
import pytest
import torch
from llm_models import CorruptFile, DuplicateTensor, MissingTensor, WeightError, WrongDtype
from llm_models.loading.safetensors_files import SafetensorsSource
from llm_models.loading.safetensors_header import read_header
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.bool, torch.complex64,
)  # fmt: skip


def bits(dtype, shape, generator):
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (*shape, size), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def packed(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def test_every_dtype_is_read_bit_by_bit(tmp_path):
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 5), (7,), (), (2, 0, 3), (1, 2, 3, 4)]
    tensors = {f"{dtype}{shape}": bits(dtype, shape, generator) for dtype in DTYPES for shape in shapes}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    source = SafetensorsSource(tmp_path)
    assert source.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        ours = source.read(name)
        assert (ours.dtype, ours.shape) == (tensor.dtype, tensor.shape)
        out = torch.empty_like(tensor)
        source.copy_into(name, out)
        for found in (ours, out):
            assert torch.equal(found.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))
        assert source.tensors[name].size == tensor.nbytes


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_integers_and_scaled_numbers_are_not_taken_for_floats(dtype, tmp_path):
    save_file({"a": torch.ones(4).to(dtype)}, tmp_path / "model.safetensors")
    source = SafetensorsSource(tmp_path)
    out = torch.full((4,), 5.0)
    with pytest.raises(WrongDtype, match="'a'"):
        source.copy_into("a", out)
    assert (out == 5).all()


GOOD = packed({"a": entry(), "b": entry("I8", (2, 2), (8, 12))}, b"x" * 12)
BAD = {
    "a hole": packed({"a": entry(), "b": entry(offsets=(12, 20))}, b"x" * 20),
    "an overlap": packed({"a": entry(), "b": entry(offsets=(4, 12))}, b"x" * 12),
    "bytes behind": GOOD + b"x",
    "bytes missing": GOOD[:-1],
    "wrong size": packed({"a": entry(shape=(3,))}, b"x" * 8),
    "negative size": packed({"a": entry(shape=(-2,))}, b"x" * 8),
    "offsets backwards": packed({"a": entry(offsets=(8, 0))}, b"x" * 8),
    "three offsets": packed({"a": entry(offsets=(0, 4, 8))}, b"x" * 8),
    "a shape of floats": packed({"a": entry(shape=(2.0,))}, b"x" * 8),
    "no dtype": packed({"a": {"shape": [2], "data_offsets": [0, 8]}}, b"x" * 8),
    "no object": packed(b"[1, 2]"),
    "no json": packed(b"{"),
    "no text": packed(b"\xff\xfe{}"),
    "an entry that is no object": packed({"a": [1]}, b""),
}


@pytest.mark.parametrize("name", BAD)
def test_the_library_refuses_it_too(name, tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(BAD[name])
    with pytest.raises(CorruptFile) as caught:
        read_header(file)
    assert "\n" not in str(caught.value)
    with pytest.raises(SafetensorError), safe_open(file, framework="pt"):
        pass


def test_damaged_headers_are_refused_where_the_library_refuses_them(tmp_path):
    file, rng = tmp_path / "model.safetensors", np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        content = bytearray(GOOD)
        content[rng.integers(0, len(GOOD) - 12)] = rng.integers(0, 256)
        file.write_bytes(content)
        try:
            with safe_open(file, framework="pt") as reference:
                names = reference.keys()
                theirs = {name: reference.get_slice(name).get_shape() for name in names}
        except SafetensorError:
            theirs = None
        try:
            ours = {name: list(found.shape) for name, found in read_header(file).items()}
        except WeightError:
            ours, refused = None, refused + 1
        if theirs is None:
            assert ours is None
        else:
            # The library ignores keys that it does not know; so do we. Of a tensor listed twice it takes one.
            assert ours == theirs or ours is None
    assert 100 < refused < 400


def test_a_tensor_listed_twice_in_a_header(tmp_path):
    one = json.dumps(entry())
    (tmp_path / "model.safetensors").write_bytes(packed(f'{{"a": {one}, "a": {one}}}'.encode(), b"x" * 8))
    with pytest.raises(DuplicateTensor, match="'a'"):
        read_header(tmp_path / "model.safetensors")


def test_an_unknown_dtype(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(packed({"a": entry("F3", (8,), (0, 3))}, b"xxx"))
    with pytest.raises(WrongDtype, match="F3"):
        read_header(tmp_path / "model.safetensors")


def test_a_dtype_that_torch_has_not(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(packed({"a": entry("F4", (4,), (0, 2))}, b"xx"))
    source = SafetensorsSource(tmp_path)
    assert source.tensors["a"].dtype == "F4"
    with pytest.raises(WrongDtype, match="F4"):
        source.read("a")


def two_shards(folder, weight_map):
    save_file({"a": torch.ones(2), "b": torch.ones(3)}, folder / "one.safetensors")
    save_file({"c": torch.ones(2)}, folder / "two.safetensors")
    (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {weight_map}}}')


def test_the_index_lists_a_tensor_twice(tmp_path):
    two_shards(tmp_path, '{"a": "one.safetensors", "a": "two.safetensors", "c": "two.safetensors"}')
    with pytest.raises(DuplicateTensor, match="listed twice") as caught:
        SafetensorsSource(tmp_path)
    assert caught.value.tensor == "a"


def test_the_index_says_another_file(tmp_path):
    two_shards(tmp_path, '{"a": "two.safetensors", "c": "two.safetensors", "b": "one.safetensors"}')
    with pytest.raises(MissingTensor, match=r"is in one\.safetensors"):
        SafetensorsSource(tmp_path)


def test_one_file_for_all_wins_over_an_index(tmp_path):
    two_shards(tmp_path, '{"a": "one.safetensors", "c": "two.safetensors"}')
    save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    assert list(SafetensorsSource(tmp_path).tensors) == ["a"]
