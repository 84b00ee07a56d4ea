"""Owns the parity of the transformers fallback on a GPU, in CUDA graphs too."""

import warnings

import pytest
import torch
import transformers
from llm_models.fallback import load_fallback
from llm_models.fallback.probe_steps import BLOCK_SIZE, LENGTHS, run_steps
from llm_models.files import resolve

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPE = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
         "pad_token_id": 0}  # fmt: skip
CASES = {
    "LlamaForCausalLM": SHAPE,
    "MistralForCausalLM": SHAPE | {"sliding_window": 4},
    "Gemma2ForCausalLM": SHAPE | {"sliding_window": 4},
    "GptOssForCausalLM": SHAPE | {"sliding_window": 4, "num_local_experts": 4, "num_experts_per_tok": 2},
    "GPT2LMHeadModel": {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "RwkvForCausalLM": {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 64},
}


@pytest.fixture
def pair(tmp_path):
    """A seeded model of transformers and the fallback's, both on the GPU."""

    def make(name: str, dtype: torch.dtype):
        transformers.logging.set_verbosity_error()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            found = getattr(transformers, name)
            reference = found(found.config_class(**CASES[name])).eval().to(dtype)
            reference.save_pretrained(tmp_path)
        model = load_fallback(resolve(str(tmp_path)), dtype=dtype, device="cuda")
        return reference.cuda(), model

    return make


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_equals_transformers(name, dtype, pair):
    reference, model = pair(name, dtype)
    assert model.verdict.kind == ("recompute" if name.startswith("Rwkv") else "paged")
    generator = torch.Generator().manual_seed(7)
    ids = {row: torch.randint(3, 96, (n,), generator=generator).cuda() for row, n in LENGTHS.items()}
    found = run_steps(model, ids)
    for row, of_row in ids.items():
        with torch.no_grad():
            expected = reference(input_ids=of_row[None], use_cache=False).logits[0].float()
        error = ((found[row] - expected).abs().amax(-1) / expected.abs().max()).median()
        assert error <= (1e-3 if dtype == torch.float32 else 3e-2)


@torch.inference_mode()
def test_decoding_in_a_graph_gives_the_same(pair):
    _, model = pair("LlamaForCausalLM", torch.bfloat16)
    from llm_models.fallback.probe_steps import _metadata

    caches = model.allocate_caches(num_blocks=8, block_size=BLOCK_SIZE)
    step = [_metadata({0: 1, 1: 1}, {0: 5, 1: 3}, torch.device("cuda"))] * len(caches)
    ids = torch.tensor([7, 9], device="cuda")
    expected = model.forward(ids, step, caches).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = model.forward(ids, step, caches)
    captured.zero_()
    graph.replay()
    assert torch.equal(captured, expected)
