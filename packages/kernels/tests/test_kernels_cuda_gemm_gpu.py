"""The products by tiles in CUDA C++, against float64 and float32 on the GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from llm_kernels import ops
from llm_kernels.cuda.gemm_tiles import SIZES, UNSPLIT_GATED, measured
from llm_kernels.errors import InvalidArgument
from llm_kernels.reference.gated_linear import gated_linear as reference_gated_linear

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="no Hopper GPU"
    ),
]

BOUND = 5e-3  # of bfloat16 results; the inputs are the same
GATED_SIZES = tuple(size for size in SIZES if size[0] > 1)
# Whole tiles, ragged ones, a single short step, fewer rows than a tile, many tiles a block.
PROBLEMS = ((256, 1024, 512), (77, 392, 200), (1, 8, 8), (300, 4104, 1096), (515, 640, 64), (1030, 5120, 320))


def _draw(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda")


def _problem(tokens: int, out_size: int, in_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    seed = tokens + out_size + in_size
    weight = (_draw(out_size, in_size, seed=seed) * in_size**-0.5).bfloat16()
    return _draw(tokens, in_size, seed=seed + 1).bfloat16(), weight, _draw(out_size, seed=seed + 2).bfloat16()


def _tiled(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    gate: int = 0,
    tiles: tuple[int, ...] = (2, 1, 128),
) -> torch.Tensor:
    from llm_kernels.cuda.gemm import Tiles, tiled

    out = torch.full(
        (x.shape[0], weight.shape[0] // (2 if gate else 1)), float("nan"), device="cuda"
    ).bfloat16()
    tiled(out, x, weight, bias, gate, Tiles(*tiles))
    return out


@pytest.mark.parametrize("pair", [1, 2])
@pytest.mark.parametrize("split", [1, 2, 3, 4])
@pytest.mark.parametrize("size", SIZES)
def test_products_are_those_of_float64(
    size: tuple[int, int, int], split: int, pair: int, relative_error: Callable[..., float]
) -> None:
    for tokens, out_size, in_size in PROBLEMS:
        x, weight, bias = _problem(tokens, out_size, in_size)
        exact = x.double() @ weight.double().T
        assert relative_error(_tiled(x, weight, tiles=(*size, split, pair)), exact) < BOUND
        out = _tiled(x, weight, bias, tiles=(*size, split, pair))
        assert relative_error(out, exact + bias.double()) < BOUND


@pytest.mark.parametrize("pair", [1, 2])
@pytest.mark.parametrize("split", [1, 2, 4])
@pytest.mark.parametrize("size", GATED_SIZES)
def test_gated_products_are_those_of_float32(
    size: tuple[int, int, int], split: int, pair: int, relative_error: Callable[..., float]
) -> None:
    if split > 1 and size == UNSPLIT_GATED:
        pytest.skip("the sums of such tiles do not fit")
    for tokens, out_size, in_size in ((256, 1024, 512), (77, 400, 200), (1, 16, 8), (1030, 2 * 2568, 320)):
        x, weight, bias = _problem(tokens, out_size, in_size)
        for gate, kind in ((1, "silu"), (2, "gelu"), (3, "gelu_tanh")):
            expected = reference_gated_linear(x.float(), weight.float(), kind, bias.float(), None)
            out = _tiled(x, weight, bias, gate, (*size, split, pair))
            assert relative_error(out, expected) < 1.5 * BOUND


@pytest.mark.parametrize("tiles", [(2, 1, 256, 1, 2), (3, 1, 256, 1, 1), (2, 1, 128, 4, 1), (2, 1, 96, 2, 2)])
def test_views_are_read_and_written_in_place(
    tiles: tuple[int, ...], relative_error: Callable[..., float]
) -> None:
    from llm_kernels.cuda.gemm import Tiles, tiled

    x, weight, _ = _problem(130, 1040, 1096)
    wide_x, wide_weight = torch.zeros(130, 1600).cuda().bfloat16(), torch.zeros(1040, 1200).cuda().bfloat16()
    wide_x[:, 40:1136], wide_weight[:, 8:1104] = x, weight
    out = torch.full((130, 1400), 7.0, device="cuda").bfloat16()
    tiled(out[:, 16:1056], wide_x[:, 40:1136], wide_weight[:, 8:1104], None, 0, Tiles(*tiles))
    assert relative_error(out[:, 16:1056], x.double() @ weight.double().T) < BOUND
    assert (out[:, :16] == 7).all()
    assert (out[:, 1056:] == 7).all()


@pytest.mark.parametrize("tiles", [(2, 1, 256, 1, 2), (3, 1, 256, 1, 1), (2, 1, 128, 4, 1), (2, 1, 64, 2, 2)])
def test_the_same_inputs_give_the_same_bits_also_from_a_graph(tiles: tuple[int, ...]) -> None:
    x, weight, _ = _problem(200, 2048, 2048)
    first = _tiled(x, weight, tiles=tiles)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = [_tiled(x, weight, tiles=tiles) for _ in range(12)]
    for _ in range(5):
        graph.replay()
        assert all(torch.equal(out, first) for out in outs)


@pytest.mark.parametrize("tiles", [(2, 1, 256, 1, 2), (3, 1, 256, 1, 1), (2, 1, 128, 4, 1), (2, 1, 64, 2, 2)])
def test_chained_products_wait_for_each_other(
    tiles: tuple[int, ...], relative_error: Callable[..., float]
) -> None:
    x, weight, _ = _problem(192, 2048, 2048)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x
        for _ in range(24):
            y = _tiled(y, weight, tiles=tiles)
    for seed in range(4):
        x.copy_(_draw(192, 2048, seed=seed))
        graph.replay()
        expected = x
        for _ in range(24):
            expected = torch.nn.functional.linear(expected.float(), weight.float()).bfloat16()
        assert relative_error(y, expected) < 0.05


@pytest.mark.parametrize(
    ("tokens", "out_size", "in_size", "gated"),
    [
        (200, 24576, 4096, True),
        (512, 24576, 4096, True),
        (60, 4096, 12288, False),
        (190, 4096, 12288, False),
        (150, 4096, 4096, False),
        (1024, 6144, 4096, False),
        (50, 1024, 2048, False),
        (100, 1024, 3072, False),
    ],
)
def test_the_ops_take_the_tiles_that_were_measured(
    tokens: int, out_size: int, in_size: int, gated: bool, relative_error: Callable[..., float]
) -> None:
    tiles = measured(tokens, out_size, in_size, gated)
    assert tiles is not None
    x, weight, bias = _problem(tokens, out_size, in_size)
    out = ops.gated_linear(x, weight, "silu", bias) if gated else ops.linear(x, weight, bias)
    numbers = (tiles.groups, tiles.blocks, tiles.tokens, tiles.split, tiles.pair)
    assert torch.equal(out, _tiled(x, weight, bias, int(gated), numbers))
    if gated:
        expected = reference_gated_linear(x.float(), weight.float(), "silu", bias.float(), None)
    else:
        expected = x.float() @ weight.float().T + bias.float()
    assert relative_error(out, expected) < 1.5 * BOUND


def test_errors_name_the_field() -> None:
    x, weight, bias = _problem(4, 64, 128)
    bad = [
        ("x_TI", (x.float(), weight)),
        ("x_TI", (x, weight[:, :64].contiguous())),
        ("x_TI", (x[:0], weight)),
        ("weight_OI", (x, weight.half())),
        ("bias", (x, weight, bias[:32])),
        ("plan", (x, weight, None, 0, (2, 1, 100))),
        ("split", (x, weight, None, 0, (2, 1, 128, 9))),
        ("split", (x, weight, None, 0, (2, 1, 128, 8, 2))),
        ("split", (x.repeat(1, 2), weight.repeat(1, 2), None, 1, (3, 1, 256, 2))),
        ("pair", (x, weight, None, 0, (2, 1, 128, 1, 3))),
    ]
    for field, arguments in bad:
        with pytest.raises(InvalidArgument) as error:
            _tiled(*arguments)
        assert error.value.field == field, field
