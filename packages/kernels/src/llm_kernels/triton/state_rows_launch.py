"""Launches the kernels of recurrences with a matrix a head: which one, tile sizes, grids.

All follows from host integers, so that a launch can be captured in a graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from llm_kernels.checks import check_inner_contiguous
from llm_kernels.metadata import AttentionMetadata
from llm_kernels.triton.launch_sizes import ceil_div, power_of_2
from llm_kernels.triton.state_rows_matrix import KEY_DECAY, chunk_kernel, inverse_kernel, token_kernel

# Below this many tokens a row, or a chunk, the products of matrices cost more than they save.
_MIN_CHUNK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixScan:
    """One call: o_t = scale q_t^T S_t, S_t = decay_t S_(t-1) + k_t u_t^T.

    Attributes:
        out: [T, H, V].
        query: [T, G, K]; G divides H.
        key: Same.
        value: [T, H, V].
        decay: What `decay_kind` says: [T, H], [T, H, K] or [H].
        decay_kind: A constant of `state_rows_matrix`.
        state: [N, H, K, V], any strides.
        metadata: The rows.
        block_size: Tokens from one checkpoint to the next.
        scale: Factor of the outputs.
        beta: [T, H]: the delta rule; None: u_t is the value.
        l2_norm: Whether queries and keys are normalised.
        rate: [H], A of the step sizes.
        bias: [H], added to the step sizes before softplus.
        dt_limit: Least and greatest step size.
        skip: [H, V], times the value onto the output; may be expanded.
    """

    out: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    decay: torch.Tensor
    decay_kind: int
    state: torch.Tensor
    metadata: AttentionMetadata
    block_size: int
    scale: float = 1.0
    beta: torch.Tensor | None = None
    l2_norm: bool = False
    rate: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    dt_limit: tuple[float, float] = (0.0, float("inf"))
    skip: torch.Tensor | None = None

    def run(self) -> None:
        """Launches the decode rows, then the others."""
        check_inner_contiguous(out=self.out, query=self.query, key=self.key, value=self.value)
        if self.decay.ndim == 3:
            check_inner_contiguous(decay=self.decay)
        decodes = self.metadata.num_decodes
        rows = self.metadata.context_lens.numel() - decodes
        if decodes > 0:
            self._by_token(0, decodes, is_decode=True)
        if rows <= 0:
            return
        if self._chunk_length() >= _MIN_CHUNK and self.metadata.max_query_len >= _MIN_CHUNK:
            self._by_chunk(decodes, rows)
        else:
            self._by_token(decodes, rows, is_decode=False)

    def _chunk_length(self) -> int:
        """Longest chunk that divides the block size; 0 where chunks do not serve."""
        if self.decay_kind == KEY_DECAY.value:
            return 0
        longest = 64 if self.key.shape[-1] <= 128 else 32
        return next(n for n in range(min(longest, self.block_size), 0, -1) if self.block_size % n == 0)

    def _by_token(self, first_row: int, num_rows: int, *, is_decode: bool) -> None:
        block_v = min(32, max(1, power_of_2(self.value.shape[2])))
        token_kernel[self._grid(num_rows, block_v)](
            *self._tensors(),
            self.state,
            *self._rows(),
            *self._strides(),
            *self.state.stride(),
            *self._scalars(first_row),
            K_PAD=power_of_2(self.key.shape[2]),
            BLOCK_V=block_v,
            IS_DECODE=is_decode,
            num_warps=4,
            **self._constants(),
        )

    def _by_chunk(self, first_row: int, num_rows: int) -> None:
        length = self._chunk_length()
        tokens = max(16, power_of_2(length))
        constants = self._constants() | {
            "K_PAD": max(16, power_of_2(self.key.shape[2])),
            "L": length,
            "TOKENS": tokens,
        }
        inverse = self.out
        if self.beta is not None:
            shape = (*self.beta.shape, tokens)
            inverse = torch.empty(shape, dtype=torch.float32, device=self.out.device)
            self._invert(inverse, first_row, num_rows, constants)
        block_v = 32 if self.value.shape[2] > 16 else 16
        chunk_kernel[self._grid(num_rows, block_v)](
            *self._tensors(),
            inverse,
            self.state,
            *self._rows(),
            *self._strides(),
            *inverse.stride()[:2],
            *self.state.stride(),
            *self._scalars(first_row),
            BLOCK_V=block_v,
            PRECISION=self._precision("tf32"),
            # Four warps would not hold a state of 128 keys in their registers.
            num_warps=8 if constants["K_PAD"] > 64 else 4,
            num_stages=1,
            **constants,
        )

    def _invert(
        self, inverse: torch.Tensor, first_row: int, num_rows: int, constants: dict[str, Any]
    ) -> None:
        beta = self.out if self.beta is None else self.beta
        # A row that does not start at a border of chunks has up to two more than it has lengths of chunks.
        chunks = self.metadata.max_query_len // constants["L"] + 2
        names = ("RATIO", "K", "K_PAD", "L", "TOKENS", "L2_NORM")
        inverse_kernel[(num_rows, chunks, self.value.shape[1])](
            inverse,
            self.key,
            self.decay,
            beta,
            self.metadata.cu_query_lens,
            self.metadata.context_lens,
            *inverse.stride()[:2],
            *self.key.stride()[:2],
            *self.decay.stride()[:2],
            *beta.stride()[:2],
            first_row,
            PRECISION=self._precision("tf32x3"),
            num_warps=4,
            **{name: constants[name] for name in names},
        )

    def _grid(self, num_rows: int, block_v: int) -> tuple[int, int, int]:
        return num_rows, self.value.shape[1], ceil_div(self.value.shape[2], block_v)

    def _precision(self, halves: str) -> str:
        """TF32 keeps ten bits of a float32: enough where the inputs are half as long."""
        return "ieee" if self.value.dtype == torch.float32 else halves

    def _tensors(self) -> tuple[torch.Tensor, ...]:
        """In the order of the kernels' signatures; a tensor that is not read is stood for by another."""
        optional = (self.beta, self.rate, self.bias, self.skip)
        given = [self.out if x is None else x for x in optional]
        return self.out, self.query, self.key, self.value, self.decay, *given

    def _rows(self) -> tuple[torch.Tensor, ...]:
        return self.metadata.cu_query_lens, self.metadata.context_lens, self.metadata.block_tables

    def _strides(self) -> tuple[int, ...]:
        decay = self.decay.stride()[:2] if self.decay.ndim > 1 else (0, 1)
        beta = (0, 0) if self.beta is None else self.beta.stride()
        skip = (0, 0) if self.skip is None else self.skip.stride()
        packed = (self.out, self.query, self.key, self.value)
        return *(n for x in packed for n in x.stride()[:2]), *decay, *beta, *skip

    def _scalars(self, first_row: int) -> tuple[float, ...]:
        table = self.metadata.block_tables.stride(0)
        return table, first_row, self.block_size, self.scale, *(float(x) for x in self.dt_limit)

    def _constants(self) -> dict[str, Any]:
        heads, value_size = self.value.shape[1:]
        return {
            "RATIO": heads // self.key.shape[1],
            "K": self.key.shape[2],
            "V": value_size,
            "DECAY": self.decay_kind,
            "IS_DELTA": self.beta is not None,
            "L2_NORM": self.l2_norm,
            "HAS_BIAS": self.bias is not None,
            "HAS_SKIP": self.skip is not None,
        }
