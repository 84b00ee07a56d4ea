"""Finds out, before the first request, whether a model's results can be made independent of the batch."""

from __future__ import annotations

import torch
from llm_kernels import ops
from llm_kernels.errors import BackendUnavailable
from llm_kernels.invariance_check import BatchInvarianceCheck, DependsOnBatch
from llm_models.model import Model

from llm_engine.worker.errors import InvalidOption
from llm_engine.worker.kv_groups import KVLayout
from llm_engine.worker.kv_pool import allocate_pool
from llm_engine.worker.step_peak import LargestSteps

_ROWS = 3
_TOKENS = 13


def check_deterministic(model: Model, layout: KVLayout) -> None:
    """Runs two small steps and looks at every operation.

    Args:
        model: Loaded.
        layout: Its KV groups.

    Raises:
        InvalidOption: The field "deterministic": an op has no batch-invariant kernel for the model, or the
            model computes something outside of the ops.
    """
    steps = LargestSteps(
        model, layout, max_num_seqs=_ROWS, max_num_batched_tokens=_TOKENS, max_model_len=_TOKENS
    )
    caches = allocate_pool(model.caches, layout, 1, model.dtype, model.device).caches
    try:
        check = BatchInvarianceCheck()  # type: ignore[no-untyped-call]  # torch's own initialiser
        with torch.inference_mode(), ops.batch_invariant(), check:
            steps.run_prompts(caches)
            model.raw_logits(steps.run_decodes(caches))
    except Exception as error:
        reason = _reason(error)
        if reason is None:
            raise
        raise InvalidOption("deterministic", f"cannot be had of this model here: {reason}") from error


def _reason(error: BaseException | None) -> BaseException | None:
    """What was found, where a model made another error of it; None: the error is of something else."""
    while error is not None and not isinstance(error, (BackendUnavailable, DependsOnBatch)):
        error = error.__cause__ or error.__context__
    return error
