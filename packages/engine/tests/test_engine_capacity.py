"""Predictions without a GPU: exact where the engine's own code gives them, floors against hand counts."""

import json

import pytest
import torch
from llm_distributed import DeviceMesh
from llm_engine import EngineOptions
from llm_engine.capacity import predict_capacity
from llm_engine.errors import InvalidOption, StartupError
from llm_engine.gpus import find_gpu, known_gpus
from llm_engine.worker import WorkerConfig, create_worker
from llm_models import load_model, resolve

H200 = find_gpu("h200")
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN3_30B_A3B = QWEN3_8B | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 512,
}
TINY_MODELS = {
    "dense": QWEN3_8B | TINY,
    "tied": QWEN3_8B | TINY | {"tie_word_embeddings": True},
    "moe": QWEN3_30B_A3B | TINY | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "windows": TINY
    | {
        "architectures": ["Gemma3ForCausalLM"],
        "sliding_window": 64,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
}


def folder_of(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def predict(tmp_path, config, gpu=H200, **options):
    return predict_capacity(EngineOptions(model=folder_of(tmp_path, config), **options), gpu)


@pytest.mark.parametrize("config", TINY_MODELS.values(), ids=TINY_MODELS)
def test_weights_are_those_that_are_loaded(tmp_path, config):
    plan = predict(tmp_path, config)
    model = load_model(resolve(str(tmp_path)), dtype=torch.bfloat16, device="cpu", load_format="dummy")
    assert plan.memory.weights_bytes == sum(tensor.nbytes for tensor in model.parameters())
    assert plan.num_parameters == sum(tensor.numel() for tensor in model.parameters())


@pytest.mark.parametrize("config", TINY_MODELS.values(), ids=TINY_MODELS)
def test_the_layout_is_the_engine_s(tmp_path, config):
    options = {"max_model_len": 200, "kv_cache_bytes": 4 << 20, "block_size": 32}
    plan = predict(tmp_path, config, **options)
    worker = create_worker(
        DeviceMesh(),
        config=WorkerConfig(
            model=str(tmp_path), device="cpu", dtype="bfloat16", load_format="dummy", threads=1, **options
        ),
    )
    info = worker.load()
    assert plan.page_bytes == info.kv_layout.page_bytes
    assert plan.num_blocks == worker.size_kv_cache()
    assert plan.concurrency[200] == plan.num_blocks // info.kv_layout.pages(200)


def test_the_8b_model_on_the_h200(tmp_path):
    """The floors of docs/performance.md, where weights of 15.1 GB and 4.27 TB/s give 280 tokens a second."""
    plan = predict(tmp_path, QWEN3_8B)
    assert plan.num_parameters == 8_190_735_360
    assert plan.kv_bytes_per_token == 2 * 36 * 8 * 128 * 2
    one = plan.floors[0]
    read = 2 * (plan.num_parameters - 151936 * 4096) + 1024 * plan.kv_bytes_per_token
    assert (one.rows, one.context) == (1, 1024)
    assert one.tokens_per_s == pytest.approx(4.27e12 / read)
    assert [floor.rows for floor in plan.floors] == [1, 16, 64, 256]
    memory = plan.memory
    assert plan.num_blocks == memory.kv_bytes // plan.page_bytes
    assert memory.used_bytes + memory.kv_bytes == int(0.9 * H200.memory_bytes)


def test_experts_are_read_as_far_as_someone_chose_them(tmp_path):
    plan = predict(tmp_path, QWEN3_30B_A3B)
    experts = 48 * 128 * 3 * 768 * 2048
    dense = plan.num_parameters - experts - 151936 * 2048
    for floor in plan.floors[:3]:
        chosen = experts * (1 - (1 - 8 / 128) ** floor.rows)
        kv_bytes = floor.rows * 1024 * plan.kv_bytes_per_token
        assert floor.step_ms == pytest.approx(1e3 * (2 * (dense + chosen) + kv_bytes) / 4.27e12)


def test_fp8_weights_and_cache(tmp_path):
    plain = predict(tmp_path, TINY_MODELS["dense"])
    plan = predict(tmp_path, TINY_MODELS["dense"], quantization="fp8", kv_cache_dtype="fp8")
    model = load_model(
        resolve(str(tmp_path)),
        dtype=torch.bfloat16,
        device="cpu",
        load_format="dummy",
        quantization="fp8",
    )
    assert plan.memory.weights_bytes == sum(tensor.nbytes for tensor in model.parameters())
    assert plan.memory.weights_bytes < plain.memory.weights_bytes
    assert plan.kv_bytes_per_token * 2 == plain.kv_bytes_per_token
    assert plan.floors[0].step_ms < plain.floors[0].step_ms


def test_many_rows_are_bound_by_arithmetic(tmp_path):
    slow = find_gpu("l40s")
    plan = predict(tmp_path, QWEN3_8B, slow, max_model_len=1024, max_num_seqs=64, max_num_batched_tokens=512)
    assert plan.floors[-1].rows == 64
    assert plan.floors[-1].tokens_per_s < slow.flops_per_s / (2 * (plan.num_parameters - 151936 * 4096))


def test_ranks_share_weights_and_heads(tmp_path):
    one, two = (predict(tmp_path, QWEN3_8B, tensor_parallel_size=ranks) for ranks in (1, 2))
    assert two.kv_bytes_per_token * 2 == one.kv_bytes_per_token
    assert one.memory.weights_bytes * 0.5 < two.memory.weights_bytes < one.memory.weights_bytes * 0.51
    assert two.num_blocks > 2 * one.num_blocks


@pytest.mark.parametrize(
    ("options", "gpu", "error", "message"),
    [
        (
            {"max_model_len": 40961},
            "h200",
            InvalidOption,
            "max_model_len: must be from 1 to the model's 40960",
        ),
        ({"tensor_parallel_size": 3}, "h200", StartupError, "ShardingError: .*3 ranks"),
        ({"max_model_len": 40960}, "l4", StartupError, "KVCacheTooSmall"),
        ({"model": "/nowhere"}, "h200", StartupError, "ModelNotFound"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_would_not_start_is_told(tmp_path, options, gpu, error, message):
    options = {"model": folder_of(tmp_path, QWEN3_8B), **options}
    with pytest.raises(error, match=message):
        predict_capacity(EngineOptions(**options), find_gpu(gpu))


def test_weights_that_do_not_fit_are_told(tmp_path):
    with pytest.raises(StartupError, match=r"ModelTooLarge: weights take 56.9 GiB .* of 19.8 GiB"):
        predict(tmp_path, QWEN3_30B_A3B, find_gpu("l4"))


def test_models_that_cannot_be_predicted_are_refused(tmp_path):
    with pytest.raises(StartupError, match="gives vectors or scores"):
        predict(tmp_path, {"architectures": ["BertModel"]} | TINY)
    with pytest.raises(StartupError, match="through transformers cannot be predicted"):
        predict(tmp_path, {"architectures": ["NowhereForCausalLM"]} | TINY)


def test_the_table_of_gpus():
    assert all(gpu.name == name for name, gpu in known_gpus().items())
    assert all(gpu.memory_bytes > 2**34 and gpu.flops_per_s > 100e12 for gpu in known_gpus().values())
    assert find_gpu("H200").is_measured
    with pytest.raises(InvalidOption, match=r"gpu: must be one of .* did you mean h100\?"):
        find_gpu("h1000")
