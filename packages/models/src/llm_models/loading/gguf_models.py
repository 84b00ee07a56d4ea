"""Owns the tensors of GGUF files under their Hugging Face names; knows nothing about the container."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llm_models.errors import CorruptFile
from llm_models.loading.gguf_files import GGUFFile
from llm_models.loading.gguf_keys import Keys
from llm_models.loading.gguf_names import Origin, origins
from llm_models.loading.source import TensorInfo, check_cast
from llm_models.loading.transfer import Transfer

_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Values decoded at a time: keeps the float32 copy of a large embedding small.
_CHUNK_VALUES = 1 << 20


class GGUFSource:
    """The tensors of a GGUF file under their Hugging Face names, in Hugging Face's order and scale.

    What the converter did is undone: interleaved query and key rows, 1 added to Gemma's norms, experts in one
    tensor.

    Raises:
        CorruptFile: See `GGUFFile`.
        UnknownQuantization: See `GGUFFile`.
        UnknownArchitecture: The file's architecture is not one of those read here.
    """

    def __init__(self, path: Path, *, transfer: Transfer | None = None) -> None:
        self.root = path
        self._transfer = transfer or Transfer()
        self._file = GGUFFile(path)
        keys = Keys(self._file)
        heads = keys.integer("attention.head_count")
        kv_heads = keys.integer("attention.head_count_kv", heads)
        self._origins = origins(self._file.tensors, keys.family, heads=heads, kv_heads=kv_heads)
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(
                name, origin.shape, origin.tensor.format.name, path, origin.rows * origin.tensor.row_bytes
            )
            for name, origin in self._origins.items()
        }

    def read(self, name: str) -> Tensor:
        """Tensor `name`: float32 but for F16 and BF16. See `TensorSource`."""
        origin = self._origins[name]
        mapped = self._mapped(origin)
        if mapped is not None:
            return mapped
        # Taking an offset off again in half precision would round.
        stored = None if origin.offset else _PLAIN.get(origin.tensor.format.name)
        out = torch.empty(origin.shape, dtype=stored or torch.float32)
        self._decode(origin, out)
        return out

    def copy_into(self, name: str, out: Tensor) -> None:
        """Decodes tensor `name` into `out`, a few rows at a time. See `TensorSource`."""
        origin = self._origins[name]
        mapped = self._mapped(origin)
        if mapped is not None:
            self.copy_view(name, mapped, out)
        else:
            check_cast(self.tensors[name], torch.float32, out.dtype)
            self._decode(origin, out)

    def copy_view(self, name: str, view: Tensor, out: Tensor) -> None:
        """Writes a view of tensor `name` into `out`. See `TensorSource`."""
        check_cast(self.tensors[name], view.dtype, out.dtype)
        try:
            self._transfer.copy(self._file.mapped, view, out)
        except OSError as error:
            raise CorruptFile(self.root, name, f"cannot be read ({error})") from error

    def _mapped(self, origin: Origin) -> Tensor | None:
        """The tensor as it lies in the file, when that is how it is meant."""
        dtype = _PLAIN.get(origin.tensor.format.name)
        if dtype is None or origin.offset or _row_order(origin) is not None:
            return None
        rows = self._file.plain(origin.tensor, dtype).reshape(origin.tensor.rows, -1)
        return rows[origin.first : origin.first + origin.rows].view(origin.shape)

    def _decode(self, origin: Origin, out: Tensor) -> None:
        tensor, order = origin.tensor, _row_order(origin)
        raw = self._file.raw(tensor)[origin.first : origin.first + origin.rows]
        rows_RC = out.view(origin.rows, -1)
        step = max(1, _CHUNK_VALUES // rows_RC.shape[1])
        for start in range(0, origin.rows, step):
            packed = raw[start : start + step] if order is None else raw[order[start : start + step]]
            values = tensor.format.decode(packed.reshape(-1, tensor.format.block_bytes))
            if origin.offset:
                values = values - np.float32(origin.offset)
            rows_RC[start : start + step].copy_(torch.from_numpy(values.reshape(len(packed), -1)))


def _row_order(origin: Origin) -> NDArray[np.int64] | None:
    """The file's row that belongs in each row of the Hugging Face tensor, or None when the order is the same.

    llama.cpp rotates neighbouring pairs, so its llama files interleave the halves of query and key heads.
    """
    if origin.heads is None or origin.rows % (2 * origin.heads):
        return None  # Rows that do not divide are a fault that the shape check names.
    order: NDArray[np.int64] = np.arange(origin.rows).reshape(origin.heads, -1, 2).swapaxes(1, 2).reshape(-1)
    return order
