"""The memory of a CUDA device: what was planned is what is used, and nothing runs out of it after ready."""

import json

import pytest
import torch
from llm_engine import LLM, EngineOptions, SamplingParams
from llm_engine.capacity import predict_capacity
from llm_engine.gpus import Gpu, find_gpu
from llm_engine.worker.memory_plan import MemoryPlan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SMALL = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
MODELS = {
    "0.6b": SMALL,
    "8b": SMALL
    | {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
    "moe": SMALL
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    },
}
GIB = 2**30
# Our own context takes half of it; with no more in use, others are taken to be absent.
IDLE_BYTES = 3 * GIB // 2


def folder_of(tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


def used_by_others():
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


@pytest.fixture(autouse=True)
def returned_memory():
    """A torn-down engine's memory goes back before the next measurement."""
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_what_was_planned_is_used(tmp_path, config):
    """The table's H200 with this device's memory: weights exact, cache and all that is used within 3 %."""
    if used_by_others() > IDLE_BYTES:
        pytest.skip("others use this device")
    known, total = find_gpu("h200"), torch.cuda.mem_get_info()[1]
    gpu = Gpu(
        name="this",
        title="this",
        memory_bytes=total,
        read_bytes_per_s=known.read_bytes_per_s,
        flops_per_s=known.flops_per_s,
        fp8_flops_per_s=known.fp8_flops_per_s,
        is_measured=False,
    )
    folder = folder_of(tmp_path, config)
    predicted = predict_capacity(EngineOptions(model=folder), gpu)
    with LLM(folder, load_format="dummy", progress=False) as llm:
        measured = MemoryPlan(**llm._core("plan").call("memory_plan"))
        num_blocks = llm.stats().kv_blocks_total
        free, _ = torch.cuda.mem_get_info()
    print(f"predicted {predicted.memory} {predicted.num_blocks}")  # noqa: T201 - for the notebook
    print(f"measured {measured} {num_blocks}")  # noqa: T201 - for the notebook
    assert predicted.memory.weights_bytes == measured.weights_bytes
    assert predicted.memory.tables_bytes == measured.tables_bytes
    assert predicted.num_blocks == pytest.approx(num_blocks, rel=0.03)
    assert predicted.memory.used_bytes == pytest.approx(measured.used_bytes, rel=0.03, abs=0.5 * GIB)
    # What stands ready are weights, cache, tables and the driver's part; steps and graphs come on top.
    ready = total - free
    still_to_come = (
        predicted.memory.step_bytes + predicted.memory.graphs_bytes + predicted.memory.reserve_bytes
    )
    assert ready + still_to_come == pytest.approx(predicted.memory.limit_bytes, rel=0.03)
    if known.memory_bytes == pytest.approx(total, rel=0.01):
        by_table = predict_capacity(EngineOptions(model=folder), known)
        assert by_table.num_blocks == pytest.approx(num_blocks, rel=0.03)


def params_of(row, output_tokens):
    """Rows of all kinds, so that every step has the costliest options beside the plain ones."""
    common = {"max_tokens": output_tokens, "ignore_eos": True, "detokenize": False, "seed": row}
    every = (
        {"temperature": 0.0},
        {"temperature": 0.9, "top_p": 0.9, "logprobs": 20},
        {"temperature": 0.9, "repetition_penalty": 1.1, "frequency_penalty": 0.1, "top_p": 0.95},
        {"temperature": 1.0, "prompt_logprobs": 5, "logprobs": 1},
    )
    return SamplingParams(**common, **every[row % len(every)])


@pytest.mark.parametrize("max_num_seqs", [256, 64])
def test_nothing_runs_out_of_memory_after_ready(tmp_path, max_num_seqs):
    """The allocator is held to what the engine planned with; then full steps run over a full cache."""
    if used_by_others() > IDLE_BYTES:
        pytest.skip("others use this device, and what they take changes")
    free, total = torch.cuda.mem_get_info()
    fraction = (total - free + 7 * GIB) / total
    llm = LLM(
        folder_of(tmp_path, SMALL),
        load_format="dummy",
        progress=False,
        max_num_seqs=max_num_seqs,
        gpu_memory_fraction=fraction,
        enable_prefix_caching=False,
    )
    with llm:
        plan = MemoryPlan(**llm._core("plan").call("memory_plan"))
        ours = plan.limit_bytes - plan.other_bytes
        torch.cuda.set_per_process_memory_fraction(ours / total)
        tokens = llm.stats().kv_blocks_total * 16
        length = tokens // max_num_seqs
        # Long enough that the first rows still run when the last prompts come in, 8,192 tokens a step.
        output_tokens = tokens // 8192 + 40
        prompts = [[(row * 31 + at) % 150_000 for at in range(length)] for row in range(max_num_seqs + 9)]
        # All rows of all kinds at a time, then all with penalties and logprobs, then plain ones (graphs).
        heavy = SamplingParams(
            max_tokens=3, ignore_eos=True, detokenize=False, top_p=0.9, presence_penalty=0.1, logprobs=20
        )
        plain = SamplingParams(max_tokens=output_tokens, ignore_eos=True, detokenize=False)
        mixed = [params_of(row, output_tokens) for row in range(len(prompts))]
        for params in (mixed, [heavy] * len(prompts), [plain] * len(prompts)):
            outputs = llm.generate(prompts, params, progress=False)
            for output, wanted in zip(outputs, params, strict=True):
                assert len(output.outputs[0].token_ids) == wanted.max_tokens
        stats = llm.stats()
        peak = torch.cuda.max_memory_reserved()
    reserved = f"planned {ours / GIB:.3f} GiB, reserved at most {peak / GIB:.3f}, cache of {tokens} tokens"
    print(reserved, stats)  # noqa: T201 - for the notebook
    assert stats.failed_steps == 0
    assert stats.preemptions > 0  # the cache was full
    assert peak <= ours
