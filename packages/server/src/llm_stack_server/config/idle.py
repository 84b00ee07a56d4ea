"""Options that have no effect beside others. Each rule stands in the help or the code of its option."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Values = Mapping[str, Any]


def idle_options(values: Values) -> Iterator[tuple[str, str]]:
    """Options among ``values`` that do nothing, each with the reason: "without ...", "with ..."."""
    for name, is_idle, reason in _RULES:
        if name in values and is_idle(values):
            yield name, reason


def _not_given(name: str) -> Callable[[Values], bool]:
    return lambda values: not values.get(name)


def _given(name: str) -> Callable[[Values], bool]:
    return lambda values: bool(values.get(name))


def _is(name: str, wanted: object) -> Callable[[Values], bool]:
    return lambda values: values.get(name) == wanted


def _guarded(values: Values) -> bool:
    return bool(values.get("api_key") or values.get("api_key_file"))


_WITHOUT_QUEUE = "without max_concurrent_requests: the engine's own queue holds then"
_WITHOUT_CACHE = "with enable_prefix_caching: false"

_RULES: tuple[tuple[str, Callable[[Values], bool], str], ...] = (
    ("max_queued_requests", _not_given("max_concurrent_requests"), _WITHOUT_QUEUE),
    ("max_queued_tokens", _not_given("max_concurrent_requests"), _WITHOUT_QUEUE),
    ("max_stored_response_bytes", _is("max_stored_responses", 0), "with max_stored_responses: 0"),
    ("allowed_host", _guarded, "with keys: host names are checked on servers without"),
    ("isolate_cache_by_key", _is("enable_prefix_caching", False), _WITHOUT_CACHE),
    ("pinned_cache_share", _is("enable_prefix_caching", False), _WITHOUT_CACHE),
    ("pinned_cache_share_per_tenant", _is("enable_prefix_caching", False), _WITHOUT_CACHE),
    ("traces_sample_ratio", _not_given("otlp_traces_endpoint"), "without otlp_traces_endpoint"),
    ("long_prompt_tokens", _not_given("long_prefill_share"), "without long_prefill_share"),
    ("gpu_memory_fraction", _given("kv_cache_bytes"), "on the cache's size, which kv_cache_bytes says"),
    ("graph_memory_gib", _is("graphs", "none"), "with graphs: none"),
    ("graph_memory_gib", _is("device", "cpu"), "on the CPU"),
)
