"""Owns running all checks of one case, whatever its kind, and what came out of it."""

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import transformers
from llm_models.caches import CacheSpec, CrossCacheSpec, KVCacheSpec, LatentCacheSpec, StateCacheSpec
from llm_models.errors import ModelError

from . import checks, encoder_decoder_checks, pooling_checks, reference, tiny_models
from .two_ranks import TwoRanks

STANDINGS = ("native", "paged", "recompute", "unsupported", "not built", "error")


@dataclass(slots=True)
class Result:
    """What came out of one case.

    Attributes:
        case: The architecture, with its variant.
        standing: One of `STANDINGS`: `paged` and `recompute` are the fallback's, `not built` transformers'.
        checks: Per check the largest relative error (of greedy tokens: how many are wrong) or what broke.
        reason: Why it is not served, or how the fallback serves it.
        caches: The kinds of cache a token leaves something in.
        seconds: Time it took.
    """

    case: str
    standing: str
    checks: dict[str, float | str] = field(default_factory=dict)
    reason: str = ""
    caches: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether it is served and every check is within the tolerance."""
        served = self.standing in ("native", "paged", "recompute")
        return served and bool(self.checks) and all(map(checks.within, self.checks.values()))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"passed": self.passed}


TP_CHECK = "TP = 2"


def check_case(case: str, folder: Path, *, fallback: bool = False, ranks: TwoRanks | None = None) -> Result:
    """Runs all checks of a case; whatever goes wrong ends up in the result.

    Args:
        case: `Class` or `Class:variant`.
        folder: Empty; the model is saved there.
        fallback: Use the fallback even if there is a native spec.
        ranks: Where native decoders are also run with TP = 2; None: not.
    """
    start = time.perf_counter()
    try:
        theirs = tiny_models.build(case)
        tiny_models.save(theirs, folder)
    except tiny_models.CannotBuild as error:
        return Result(case, "not built", reason=str(error))
    except Exception as error:  # noqa: BLE001 - whatever transformers raises is a result
        return Result(case, "not built", reason=_line(error))
    try:
        result = _checked(case, theirs, folder, fallback, ranks)
    except ModelError as error:
        result = Result(case, "unsupported", reason=str(error))
    except Exception as error:  # noqa: BLE001 - a bug of ours is a result
        result = Result(case, "error", reason=_line(error))
    result.seconds = round(time.perf_counter() - start, 1)
    return result


def _checked(
    case: str, theirs: transformers.PreTrainedModel, folder: Path, fallback: bool, ranks: TwoRanks | None
) -> Result:
    if tiny_models.architecture_of(case) in tiny_models.pooling_cases():
        ours = pooling_checks.load(folder)
        pair = pooling_checks.PoolingPair(theirs, ours)
        result = Result(case, "native")
        _run(result, pooling_checks.checks_of(pair), pair)
        return result
    if tiny_models.architecture_of(case) in tiny_models.encoder_decoder_cases():
        both = encoder_decoder_checks.load(folder)
        result = Result(case, "native", caches=_cache_kinds(both.caches))
        _run(result, encoder_decoder_checks.CHECKS, encoder_decoder_checks.EncoderDecoderPair(theirs, both))
        return result
    ours, standing, reason = checks.load_ours(folder, fallback=fallback)
    result = Result(case, standing, reason=reason, caches=_cache_kinds(ours.caches))
    change = reference.dependence_on_later_tokens(theirs)
    pair = checks.Pair(theirs, ours, causal=checks.within(change))
    if not pair.causal:
        said = f"in transformers a token's logits depend on later tokens (by {change:.0e})"
        result.reason = f"{result.reason}; {said}: the last ones are compared".removeprefix("; ")
    _run(result, checks.CHECKS, pair)
    if ranks is not None and standing == "native":
        _run(result, {TP_CHECK: lambda pair: checks.two_ranks(pair, ranks, folder)}, pair)
        _note_refusal(result)
    return result


def _note_refusal(result: Result) -> None:
    """A model that says it cannot be shared out has no outcome there: that is a limit, no difference."""
    outcome = result.checks[TP_CHECK]
    if isinstance(outcome, str) and "ShardingError: " in outcome:
        del result.checks[TP_CHECK]
        said = outcome.partition("ShardingError: ")[2].rpartition(" (")[0]
        result.reason = f"{result.reason}; refused with {TP_CHECK}: {said}".removeprefix("; ")


def _run(result: Result, suite: Mapping[str, Callable[[Any], float]], pair: object) -> None:
    for name, check in suite.items():
        try:
            result.checks[name] = check(pair)
        except Exception as error:  # noqa: BLE001 - a failing check is a result
            result.checks[name] = _line(error)


def _cache_kinds(caches: tuple[CacheSpec, ...]) -> list[str]:
    names = {KVCacheSpec: "full", LatentCacheSpec: "latent", StateCacheSpec: "state", CrossCacheSpec: "cross"}
    kinds = []
    for cache in caches:
        kind = names.get(type(cache), "tokens")
        if isinstance(cache, KVCacheSpec) and cache.window is not None:
            kind = "window"
        if isinstance(cache, KVCacheSpec) and cache.chunk is not None:
            kind = "chunk"
        kinds.append(kind)
    return list(dict.fromkeys(kinds))


def _line(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text} ({Path(place.filename).name}:{place.lineno})"
