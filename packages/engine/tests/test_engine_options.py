"""Options are checked when made, and carry what a command line needs."""

import dataclasses
import math

import msgspec
import pytest
from llm_engine import EngineOptions, InvalidOption


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", ""), ("model", None), ("model", 5), ("tokenizer", ""), ("dtype", "float8"),
        ("device", "tpu"),
        ("device", "cpu:0"), ("device", "cuda:"), ("device", "cuda:x"), ("load_format", "pickle"),
        ("quantization", "int4"), ("quantization", ""),
        ("max_model_len", 0), ("max_model_len", True), ("block_size", 24), ("block_size", 0),
        ("block_size", 512), ("state_interval", 0), ("state_interval", 24),
        ("gpu_memory_fraction", 0), ("gpu_memory_fraction", 1.1), ("gpu_memory_fraction", math.nan),
        ("kv_cache_bytes", -1), ("max_num_seqs", 0), ("max_num_batched_tokens", 0), ("scheduler", ""),
        ("worker", ""),
        ("policy", "lifo"), ("eviction_policy", "mru"), ("host_cache_gib", -1),
        ("host_cache_gib", math.inf), ("graph_memory_gib", -1), ("graph_memory_gib", math.nan),
        ("long_prefill_share", 0), ("long_prefill_share", 1.5),
        ("enable_prefix_caching", 1), ("overlap", "yes"), ("seed", 1.5),
        ("max_waiting_requests", 0), ("max_waiting_tokens", 0), ("threads", 0), ("progress", None),
        ("graphs", "some"), ("graphs", None),
    ],
)  # fmt: skip
def test_a_bad_value_names_its_field(field, value):
    with pytest.raises(InvalidOption) as caught:
        EngineOptions(**{"model": "m", field: value})
    assert caught.value.field == field


def test_an_unknown_option_is_refused_with_a_hint():
    with pytest.raises(InvalidOption, match="did you mean max_num_seqs"):
        EngineOptions.from_mapping({"model": "m", "max_num_seq": 5})
    with pytest.raises(InvalidOption, match="model"):
        EngineOptions.from_mapping({})


def test_every_option_has_a_help_text():
    for field in dataclasses.fields(EngineOptions):
        assert field.metadata["help"].endswith("."), field.name


def test_options_survive_the_way_to_the_core_process():
    options = EngineOptions(
        model="m", device="cuda:1", overlap=False, kv_cache_bytes=5, gpu_memory_fraction=0.5
    )
    assert msgspec.json.decode(msgspec.json.encode(options), type=EngineOptions) == options
