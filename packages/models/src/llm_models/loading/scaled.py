"""Owns e4m3 weights of checkpoints: which parameters take them as they are, and filling parameters from them.

A checkpoint keeps scales beside a weight, under the weight's name with another ending. A parameter takes e4m3
weights as they are when all that it holds is stored so and the scales can be cut where the parameter is cut;
otherwise the weights are given back their width while they are loaded. Weights stored wider are quantized on
their way where the scheme says so. Nothing is ever on the device twice but the tensors under way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from llm_models.errors import MissingTensor, WrongDtype, WrongShape
from llm_models.loading.e4m3 import E4M3, dequantize, quantize, row_scales, scale_shape
from llm_models.loading.placement import Placement
from llm_models.loading.source import TensorSource
from llm_models.names import NameIndex, Names
from llm_models.parameters import ABSENT, Parameter, Part, scale_names
from llm_models.quantization import BLOCK, Scheme

_STORED = frozenset({"F8_E4M3", "float8_e4m3fn"})
_WEIGHT_SCALES = ("weight_scale", "weight_scale_inv")
_INPUT_SCALES = ("input_scale", "activation_scale")
# torch's products of e4m3 numbers take sizes that are multiples of this.
_MULTIPLE = 16


def is_e4m3(name: str, source: TensorSource) -> bool:
    """Whether a tensor of the files is e4m3."""
    return source.tensors[name].dtype in _STORED


def scales_beside(source: TensorSource) -> frozenset[str]:
    """The tensors that are scales of e4m3 weights."""
    beside = {
        scale
        for name in source.tensors
        if name.endswith("weight") and is_e4m3(name, source)
        for scale in _candidates(name, _WEIGHT_SCALES + _INPUT_SCALES)
    }
    return frozenset(beside & source.tensors.keys())


def quantized_parameters(
    wanted: Sequence[Parameter],
    placed: Mapping[str, Sequence[Placement]],
    source: TensorSource,
    scheme: Scheme,
) -> list[Parameter]:
    """The parameters as they are kept: which are e4m3, and their scales after them.

    Raises:
        MissingTensor: A weight's scale is in no file.
        WrongShape: A scale does not go with its weight.
        WrongDtype: An e4m3 tensor is in a layout whose scales cannot be told.
    """
    by_parameter: dict[str, list[Placement]] = {}
    for placements in placed.values():
        for placement in placements:
            by_parameter.setdefault(placement.parameter, []).append(placement)
            if is_e4m3(placement.source.tensor, source):
                _check_scales(placement, source, scheme)

    def is_kept(parameter: Parameter) -> bool:
        if not parameter.quantizable:
            return False
        if scheme.at_load:
            return _has_even_sizes(parameter)
        own = by_parameter.get(parameter.name, ())
        return bool(own) and all(
            is_e4m3(placement.source.tensor, source) and _can_cut_scales(placement, scheme)
            for placement in own
        )

    return _with_scales(wanted, scheme, kept={one.name for one in wanted if is_kept(one)})


def imagined_parameters(wanted: Sequence[Parameter], names: Names, scheme: Scheme) -> list[Parameter]:
    """As `quantized_parameters` where no files are read: by the config's names alone."""
    index = NameIndex(names)

    def is_kept(parameter: Parameter) -> bool:
        if not parameter.quantizable or not _has_even_sizes(parameter):
            return False
        if scheme.weights == "block" and parameter.lead > 1 and not _begin_with_blocks(parameter):
            return False
        places = [place for part in parameter.parts for place in index.sources(part.name)[:1]]
        return not any(scheme.leaves_out(place.tensor.removesuffix(".weight")) for place in places)

    return _with_scales(wanted, scheme, kept={one.name for one in wanted if is_kept(one)})


def _with_scales(wanted: Sequence[Parameter], scheme: Scheme, *, kept: set[str]) -> list[Parameter]:
    found = []
    for parameter in wanted:
        if parameter.name not in kept:
            found.append(parameter)
            continue
        *experts, outputs, inputs = parameter.shape
        weight_scale, input_scale = scale_names(parameter.name)
        shape = (*experts, *scale_shape(scheme.weights, outputs, inputs))
        found += [replace(parameter, dtype=E4M3), _unfilled(weight_scale, shape)]
        if scheme.static_activations:
            found.append(_unfilled(input_scale, (len(parameter.parts),)))
    return found


def _unfilled(name: str, shape: tuple[int, ...]) -> Parameter:
    return Parameter(
        name=name, shape=shape, parts=(Part(name=ABSENT, shape=shape),), kind="other", dtype=torch.float32
    )


def _has_even_sizes(parameter: Parameter) -> bool:
    return all(size % _MULTIPLE == 0 for part in parameter.parts for size in part.shape)


def _begin_with_blocks(parameter: Parameter) -> bool:
    """Whether each expert's parts begin where blocks of scales do."""
    return not any(part.taken[0] % BLOCK for part in parameter.parts)


def _can_cut_scales(placement: Placement, scheme: Scheme) -> bool:
    """Whether blocks of scales begin where the part, and what is taken of it, begin."""
    if scheme.weights != "block":
        return True
    if len(placement.source.fused.targets) > 1 and placement.source.fused.split != "rows":
        return False
    rows, columns = placement.part.rows or (0, 0), placement.part.columns or (0, 0)
    first = sum(placement.rows[: placement.source.target]) + rows[0]
    return not any(start % BLOCK for start in (placement.start, first, columns[0]))


def _candidates(weight: str, leaves: Sequence[str]) -> list[str]:
    return [weight.removesuffix("weight") + leaf for leaf in leaves]


def _beside(weight: str, leaves: Sequence[str], source: TensorSource) -> str:
    found = [name for name in _candidates(weight, leaves) if name in source.tensors]
    if not found:
        raise MissingTensor(source.root, _candidates(weight, leaves)[0], "is missing from the weights")
    return found[0]


def _check_scales(placement: Placement, source: TensorSource, scheme: Scheme) -> None:
    name, fused = placement.source.tensor, placement.source.fused
    info = source.tensors[name]
    if fused.stacked or fused.transposed or fused.flat_experts or len(info.shape) != 2:
        raise WrongDtype(info.file, name, f"has dtype {info.dtype} in a layout that is not read")
    scale = source.tensors[_beside(name, _WEIGHT_SCALES, source)]
    outputs, inputs = info.shape
    wanted = {
        "tensor": ((), (1,), (1, 1)),
        "channel": ((outputs,), (outputs, 1)),
        "block": (scale_shape("block", outputs, inputs),),
    }[scheme.weights]
    if scale.shape not in wanted:
        reason = f"has shape {list(scale.shape)}, the config asks for one scale a {scheme.weights}"
        raise WrongShape(scale.file, scale.name, reason)
    if scheme.static_activations:
        _beside(name, _INPUT_SCALES, source)


@dataclass(frozen=True, slots=True)
class ScaledCopy:
    """Fills parameters from tensors where either of the two is e4m3.

    Attributes:
        source: The files.
        parameters: By name, on their device.
        scheme: How the model is quantized.
    """

    source: TensorSource
    parameters: Mapping[str, Tensor]
    scheme: Scheme

    def concerns(self, placement: Placement) -> bool:
        """Whether it is needed for a placement."""
        return is_e4m3(placement.source.tensor, self.source) or self._is_narrow(placement)

    def fill(self, placement: Placement) -> None:
        """Copies one part into place, with what its number format needs.

        Raises:
            WeightError: A tensor cannot be read.
        """
        name, destination = placement.source.tensor, placement.destination(self.parameters)
        match (is_e4m3(name, self.source), self._is_narrow(placement)):
            case (True, True):
                self._keep(placement)
            case (True, False):
                self._dequantize(placement)
            case (False, True):
                self._quantize(placement)
            case _:
                self.source.copy_view(name, placement.take(self.source.read(name)), destination)
                if placement.shift:
                    destination += placement.shift

    def _is_narrow(self, placement: Placement) -> bool:
        return self.parameters[placement.parameter].dtype == E4M3

    def _keep(self, placement: Placement) -> None:
        name = placement.source.tensor
        destination = placement.destination(self.parameters)
        self.source.copy_view(name, placement.take(self.source.read(name)), destination)
        weight_scale, input_scale = scale_names(placement.parameter)
        scales_OG, out = self._row_scales(placement), self.parameters[weight_scale]
        out = out.flatten(0, placement.lead - 1)
        start, count = placement.start, len(destination)
        if self.scheme.weights == "block":
            first, end = placement.part.columns or (0, placement.part.shape[1])
            blocks = scales_OG[::BLOCK, first // BLOCK : -(-end // BLOCK)]
            out[start // BLOCK : start // BLOCK + len(blocks)].copy_(blocks)
        else:
            out[start : start + count].copy_(scales_OG[:, 0])
        if self.scheme.static_activations:
            scale = self.source.read(_beside(name, _INPUT_SCALES, self.source))
            self.parameters[input_scale][placement.index].copy_(scale.float().reshape(()))

    def _dequantize(self, placement: Placement) -> None:
        name, destination = placement.source.tensor, placement.destination(self.parameters)
        view = placement.take(self.source.read(name))
        values = torch.empty(view.shape, dtype=E4M3, device=destination.device)
        self.source.copy_view(name, view, values)
        columns = placement.part.columns or (0, 0)
        dequantize(values, self._row_scales(placement).to(values.device), columns[0], destination)
        if placement.shift:
            destination += placement.shift

    def _quantize(self, placement: Placement) -> None:
        """All columns count for a row's scale, so that ranks which share them have the same weights."""
        name, destination = placement.source.tensor, placement.destination(self.parameters)
        whole = replace(placement, part=replace(placement.part, columns=None))
        view = whole.take(self.source.read(name))
        staged = torch.empty(view.shape, dtype=view.dtype, device=destination.device)
        self.source.copy_view(name, view, staged)
        scale = self.parameters[scale_names(placement.parameter)[0]].flatten(0, placement.lead - 1)
        scale = scale[placement.start : placement.start + len(staged)]
        if placement.part.columns is None:
            quantize(staged, self.scheme.weights, destination, scale)
            return
        values = torch.empty(staged.shape, dtype=E4M3, device=staged.device)
        quantize(staged, self.scheme.weights, values, scale)
        destination.copy_(values[:, slice(*placement.part.columns)])

    def _row_scales(self, placement: Placement) -> Tensor:
        """The scales of the part's rows on the CPU, [O, 1] or [O, blocks of the tensor's columns]."""
        name = placement.source.tensor
        scale = self.source.read(_beside(name, _WEIGHT_SCALES, self.source))
        outputs, inputs = self.source.tensors[name].shape
        whole_OG = row_scales(scale, outputs, inputs)
        place = placement.source
        own_OG = place.fused.take(whole_OG, place.target, place.expert, placement.rows)
        return own_OG if placement.part.rows is None else own_OG[slice(*placement.part.rows)]
