"""The largest steps, and the arithmetic of a device's memory; what is measured there, a GPU test compares."""

import json

import msgspec
import pytest
import torch
from llm_distributed import DeviceMesh
from llm_engine.worker import WorkerConfig, create_worker
from llm_engine.worker.errors import KVCacheTooSmall
from llm_engine.worker.kv_groups import KVGroup, KVLayout
from llm_engine.worker.kv_pool import allocate_pool
from llm_engine.worker.kv_sizing import count_pages
from llm_engine.worker.memory_plan import MemoryPlan, tables_bytes
from llm_engine.worker.slot_tables import SlotTables
from llm_engine.worker.step_peak import LargestSteps

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 128,
}
PLAN = MemoryPlan(
    device_bytes=1000,
    limit_bytes=900,
    weights_bytes=100,
    other_bytes=50,
    tables_bytes=20,
    step_bytes=30,
    graphs_bytes=60,
    reserve_bytes=40,
)
LAYOUT = KVLayout(groups=(KVGroup(kind="full", block_size=16, caches=(0,)),), page_bytes=10)


def test_the_cache_gets_what_the_rest_leaves():
    assert (PLAN.used_bytes, PLAN.kv_bytes) == (300, 600)
    config = WorkerConfig(model="m", max_model_len=16)
    assert count_pages(LAYOUT, config, PLAN) == 60
    assert count_pages(LAYOUT, msgspec.structs.replace(config, kv_cache_bytes=79), PLAN) == 7
    with pytest.raises(KVCacheTooSmall, match="lower max_model_len to at most 960, or raise gpu_memory"):
        count_pages(LAYOUT, WorkerConfig(model="m", max_model_len=961), PLAN)
    with pytest.raises(KVCacheTooSmall):
        count_pages(LAYOUT, config, msgspec.structs.replace(PLAN, weights_bytes=10_000))


@pytest.mark.parametrize("max_model_len", [1, 63, 64, 1000])
def test_tables_take_what_slot_tables_allocate(max_model_len):
    groups = (
        KVGroup(kind="full", block_size=16, caches=(0,)),
        KVGroup(kind="window", block_size=16, span=32, caches=(1,)),
        KVGroup(kind="state", block_size=512, caches=(2,)),
    )
    tables = SlotTables(7, max_model_len, groups, torch.device("cpu"))
    allocated = tables.token_ids.nbytes + tables.flat_tables.nbytes
    assert tables_bytes(KVLayout(groups=groups, page_bytes=1), 7, max_model_len) == allocated


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny")
    (path / "config.json").write_text(json.dumps(CONFIG))
    config = WorkerConfig(model=str(path), device="cpu", load_format="dummy", threads=1, dtype="float32")
    made = create_worker(DeviceMesh(), config=config)
    made.load()
    return made


@pytest.mark.parametrize(("seqs", "tokens"), [(3, 20), (8, 8), (9, 5)])
def test_the_largest_steps_run(worker, seqs, tokens):
    model, layout = worker._loaded.model, worker._loaded.info.kv_layout
    steps = LargestSteps(model, layout, max_num_seqs=seqs, max_num_batched_tokens=tokens, max_model_len=128)
    caches = allocate_pool(model.caches, layout, 1, model.dtype, model.device).caches
    rows = min(seqs, tokens)
    hidden_RE = steps.run_prompts(caches)
    assert hidden_RE.shape == steps.run_decodes(caches).shape == (rows, 32)
    assert hidden_RE.isfinite().all()
    steps.run_draw(hidden_RE)
    assert not any(tensor.any() for cache in caches for tensor in cache)  # nothing was written


def test_a_cpu_s_worker_has_no_plan(worker):
    assert worker.size_kv_cache() > 0
    assert worker.memory_plan() is None
