"""Moving views of mapped files: every kind of view, in pieces, cast, to every device there is."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from llm_models import CorruptFile
from llm_models.loading.mapped_files import MappedFile
from llm_models.loading.transfer import Transfer

FRONT = b"12345678"
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
VIEWS = {
    "whole": lambda x: x,
    "rows": lambda x: x[3:90],
    "columns": lambda x: x[:, 10:190],
    "transposed": lambda x: x.T,
    "every other row": lambda x: x[::2],
    "stacked": lambda x: x.view(10, 10, 200)[2:5],
    "middle": lambda x: x.view(10, 10, 200)[:, 3],
    "swapped": lambda x: x.view(10, 10, 200).transpose(1, 2),
    "one row": lambda x: x[5],
    "one number": lambda x: x[5, 6],
    "none": lambda x: x[:0],
    "repeated": lambda x: x[:1].expand(7, 200),
}


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.int16], ids=str)
def stored(request, tmp_path):
    x = (torch.randn(100, 200, generator=torch.Generator().manual_seed(0)) * 50).to(request.param)
    path = tmp_path / "file"
    path.write_bytes(FRONT + x.view(torch.uint8).numpy().tobytes())
    file = MappedFile(path)
    return file, file.tensor(x.dtype, (100, 200), len(FRONT)), x


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("piece", [64, 5000, 1 << 20])
@pytest.mark.parametrize("name", VIEWS)
def test_every_view_arrives(name, piece, device, stored):
    file, mapped, x = stored
    view, expected = VIEWS[name](mapped), VIEWS[name](x)
    transfer = Transfer(threads=3, piece_bytes=piece)
    for dtype in {x.dtype, torch.float32, torch.float16}:
        out = torch.full(view.shape, 7, dtype=dtype, device=device)
        transfer.copy(file, view, out)
        assert torch.equal(out.cpu(), expected.to(dtype))


@pytest.mark.parametrize("device", DEVICES)
def test_a_destination_with_gaps(device, stored):
    file, mapped, x = stored
    out = torch.full((100, 200, 2), 7, dtype=x.dtype, device=device)
    Transfer(threads=2, piece_bytes=999).copy(file, mapped, out[..., 1])
    assert torch.equal(out[..., 1].cpu(), x)
    assert (out[..., 0] == 7).all()


@pytest.mark.parametrize("device", DEVICES)
def test_many_callers_at_once(device, stored):
    file, mapped, x = stored
    transfer = Transfer(threads=3, piece_bytes=700)
    outs = [torch.empty(100, 200, dtype=x.dtype, device=device) for _ in range(24)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda out: transfer.copy(file, mapped, out), outs))
    assert all(torch.equal(out.cpu(), x) for out in outs)


def test_a_copy_that_lies_in_no_file(stored):
    file, mapped, x = stored
    out = torch.empty_like(x)
    Transfer(threads=2, piece_bytes=999).copy(file, mapped.clone(), out)
    assert torch.equal(out, x)


def test_a_file_that_became_shorter(stored):
    file, mapped, x = stored
    with file.path.open("r+b") as stream:
        stream.truncate(4096)
    with pytest.raises(CorruptFile, match="shorter"):
        Transfer(threads=2, piece_bytes=1024).copy(file, mapped, torch.empty_like(x))


def test_rows_are_read_from_where_they_lie(stored):
    file, mapped, x = stored
    assert file.offset(mapped[7]) == len(FRONT) + 7 * 200 * x.element_size()
    assert file.offset(x) is None
