"""Owns splitting transformers' forward into its body and its head; knows nothing about attention or caches.

The body is the first submodule that a class calls in its forward and that turns tokens into rows; the head
is what the class does with them then. To run the head alone, the class's own forward runs with a stand-in for
the body, so scalings, caps and biases of logits are the class's own.
"""

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class Split:
    """A class's forward in two parts: tokens to hidden states, hidden states to logits.

    Where the parts cannot be told apart, the hidden states are the logits. `whole` says which it is.

    Args:
        model: Transformers' model.
        ids_1T: A few ids to learn the split from.
        positions_1T: Their positions if they are to be passed, else None.
    """

    def __init__(self, model: nn.Module, ids_1T: Tensor, positions_1T: Tensor | None) -> None:
        self._model = model
        self._options = {"use_cache": False} if _takes(model, "use_cache") else {}
        call, output = _record_first_call(model, **self._inputs(ids_1T, positions_1T))
        logits = logits_in(output)
        self.vocab_size: int = logits.shape[-1]
        self._body: _Body | None = None
        if call is not None:
            self._body = _find_body(model, call, ids_1T, positions_1T)
        if self._body is not None and not self._agrees(ids_1T, positions_1T, logits):
            self._body = None
        self.hidden_size = self._body.hidden_size if self._body is not None else self.vocab_size

    @property
    def whole(self) -> bool:
        """Whether the hidden states are the logits."""
        return self._body is None

    def hidden(self, ids_BT: Tensor, positions_BT: Tensor | None) -> Tensor:
        """Hidden states [B, T, hidden_size]."""
        if self._body is None:
            return logits_in(self._model(**self._inputs(ids_BT, positions_BT)))
        return self._body.run(ids_BT, positions_BT)

    def logits(self, hidden_RE: Tensor) -> Tensor:
        """Logits [R, vocab_size]."""
        if self._body is None:
            return hidden_RE
        ids_1R = torch.zeros(1, hidden_RE.shape[0], dtype=torch.long, device=hidden_RE.device)
        shell = self._body.shell(hidden_RE[None])
        return logits_in(shell(**self._inputs(ids_1R, None)))[0]

    def _inputs(self, ids_BT: Tensor, positions_BT: Tensor | None) -> dict[str, Any]:
        positions = {} if positions_BT is None else {"position_ids": positions_BT}
        return {"input_ids": ids_BT, **positions, **self._options}

    def _agrees(self, ids_1T: Tensor, positions_1T: Tensor | None, logits_1TV: Tensor) -> bool:
        try:
            hidden_TE = self.hidden(ids_1T, positions_1T)[0]
            # Rows in another number and order: a head that mixes or places them gives other numbers.
            rows = torch.arange(hidden_TE.shape[0] - 1, 0, -1, device=hidden_TE.device)
            scores_RV = self.logits(hidden_TE[rows])
        except Exception:  # noqa: BLE001 A class may raise anything in a run it was not written for.
            return False
        expected_RV = logits_1TV[0][rows]
        return scores_RV.shape == expected_RV.shape and _close(scores_RV, expected_RV)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    path: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """The submodule at `path`, and the arguments that its class calls it with."""

    model: nn.Module
    path: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any
    hidden_size: int

    def run(self, ids_BT: Tensor, positions_BT: Tensor | None) -> Tensor:
        def filled(value: Any) -> Any:
            return ids_BT if value is _IDS else positions_BT if value is _POSITIONS else value

        body = self.model.get_submodule(self.path)
        output = body(*map(filled, self.args), **{name: filled(value) for name, value in self.kwargs.items()})
        hidden_BTE: Tensor = _first_tensor(output)
        return hidden_BTE

    def shell(self, hidden_1RE: Tensor) -> nn.Module:
        """The model with a body that gives `hidden_1RE`; all else is shared."""
        return _replaced(self.model, self.path.split("."), _StandIn(_with_hidden(self.output, hidden_1RE)))


_IDS, _POSITIONS = object(), object()


class _StandIn(nn.Module):
    def __init__(self, output: Any) -> None:
        super().__init__()
        self._output = output

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        return self._output


def logits_in(output: Any) -> Tensor:
    """The logits in what a model for causal language modelling returned."""
    found = output.logits if hasattr(output, "logits") else _first_tensor(output)
    assert isinstance(found, Tensor)
    return found


def takes_positions(model: nn.Module) -> bool:
    """Whether the forward of `model` takes `position_ids`, by name or among others."""
    return _takes(model, "position_ids")


def _takes(model: nn.Module, name: str) -> bool:
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _record_first_call(model: nn.Module, **inputs: Any) -> tuple[_Recorded | None, Any]:
    """Runs `model` once; returns the first call that its own forward makes to a submodule, and the output."""
    found: list[_Recorded] = []
    depth = 0

    def enter(_module: nn.Module, _args: Any, _kwargs: Any) -> None:
        nonlocal depth
        depth += 1

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        nonlocal depth
        depth -= 1
        if depth == 0:
            found.append(_Recorded(path=paths[module], args=args, kwargs=kwargs, output=output))

    paths = {module: path for path, module in model.named_modules() if path}
    handles = [module.register_forward_pre_hook(enter, with_kwargs=True) for module in paths]
    handles += [module.register_forward_hook(leave, with_kwargs=True) for module in paths]
    try:
        output = model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return (found[0] if found else None), output


def _find_body(
    model: nn.Module, call: _Recorded, ids_1T: Tensor, positions_1T: Tensor | None
) -> _Body | None:
    hidden = _first_tensor(call.output)
    if not isinstance(hidden, Tensor) or hidden.dim() != 3 or hidden.shape[:2] != ids_1T.shape:
        return None

    def role(value: Any) -> Any:
        if value is ids_1T:
            return _IDS
        if value is positions_1T and value is not None:
            return _POSITIONS
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise LookupError

    try:
        args = tuple(role(value) for value in call.args)
        kwargs = {name: role(value) for name, value in call.kwargs.items()}
    except LookupError:
        return None
    if not any(value is _IDS for value in (*args, *kwargs.values())):
        return None
    return _Body(
        model=model,
        path=call.path,
        args=args,
        kwargs=kwargs,
        output=call.output,
        hidden_size=hidden.shape[-1],
    )


def _first_tensor(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output
    try:
        return output[0]
    except (TypeError, LookupError):
        return None


def _with_hidden(output: Any, hidden: Tensor) -> Any:
    """`output` with `hidden` as its first entry and nothing but plain values besides."""
    if isinstance(output, Tensor):
        return hidden
    if isinstance(output, tuple):
        return (hidden, *(None for _ in output[1:]))
    first = next(iter(output.keys()))
    return type(output)(**{first: hidden})


def _replaced(module: nn.Module, path: list[str], stand_in: nn.Module) -> nn.Module:
    """A copy of `module` that shares all but the submodule at `path`."""
    if not path:
        return stand_in
    twin = copy.copy(module)
    twin.__dict__["_modules"] = dict(module._modules)
    inner = module._modules[path[0]]
    assert inner is not None
    twin._modules[path[0]] = _replaced(inner, path[1:], stand_in)
    return twin


def _close(found: Tensor, expected: Tensor) -> bool:
    room = 1e-4 if expected.dtype == torch.float32 else 2e-2
    difference = (found.float() - expected.float()).abs().max()
    return bool(difference <= room * (1e-6 + expected.float().abs().max()))
