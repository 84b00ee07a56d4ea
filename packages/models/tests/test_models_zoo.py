"""One architecture of each block type through the parity harness, scripts/model_parity.

The whole sweep over all classes is `python -m scripts.model_parity sweep`; its results are docs/models.md.
"""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from llm_models import known_architectures

ROOT = Path(__file__).parents[3]

# One of each block type: what it is there for.
ZOO = {
    "LlamaForCausalLM:llama3-rope": "scaled rope",
    "Gemma2ForCausalLM": "sandwich norms, 1 + w, soft caps, windows in every other layer",
    "GPT2LMHeadModel": "learned positions, layer norm with biases, fused weights",
    "BloomForCausalLM": "ALiBi, norm of the embedding",
    "GPTNeoXForCausalLM": "parallel branches with two norms, partial rope",
    "CohereForCausalLM:qk-norm": "parallel branches with one norm, interleaved rope",
    "MixtralForCausalLM": "softmax routing",
    "DeepseekV3ForCausalLM": "latent attention, sigmoid routing in groups, shared experts, dense first layer",
    "GptOssForCausalLM": "sinks, clamped experts with biases",
    "Llama4ForCausalLM": "chunked attention, layers without rope, attention temperature",
    "Gemma3nForCausalLM": "embeddings a layer, KV shared between layers, several streams",
    "MambaForCausalLM": "selective scan",
    "Mamba2ForCausalLM": "state space duality",
    "Qwen3NextForCausalLM": "gated delta rule beside gated attention",
    "MiniMaxForCausalLM": "lightning attention",
    "Lfm2ForCausalLM": "short convolutions",
    "RecurrentGemmaForCausalLM": "linear recurrent unit",
    "Zamba2ForCausalLM": "blocks shared between layers",
    "FalconH1ForCausalLM": "attention and state space side by side",
}


POOLING = {
    "BertModel": "post-norm encoder, types of tokens",
    "XLMRobertaForSequenceClassification": "cross-encoder, positions with an offset",
    "Qwen3ForSequenceClassification": "reward model",
    "LlamaForTokenClassification": "scores of tokens",
}


@pytest.fixture(scope="module")
def harness():
    """The modules of the harness, imported from scripts/ as a package."""
    sys.path.insert(0, str(ROOT))
    try:
        yield importlib.import_module("scripts.model_parity.checks")
    finally:
        sys.path.remove(str(ROOT))


@pytest.mark.parametrize("case", POOLING)
def test_pools_as_transformers_does(harness, tmp_path, case):
    pooling = importlib.import_module("scripts.model_parity.pooling_checks")
    pair = pooling.load_pooling_pair(case, tmp_path)
    found = {name: check(pair) for name, check in pooling.checks_of(pair).items()}
    assert len(found) >= 2
    assert all(map(harness.within, found.values())), found


@pytest.mark.parametrize("case", ["T5ForConditionalGeneration", "WhisperForConditionalGeneration"])
def test_decodes_what_is_encoded_as_transformers_does(harness, tmp_path, case):
    found = importlib.import_module("scripts.model_parity.cases").check_case(case, tmp_path)
    assert found.passed, found
    assert set(found.checks) == {"one pass", "chunked", "batched", "preempted", "greedy"}


@pytest.fixture(scope="module", params=ZOO, ids=lambda case: case)
def pair(request, harness, tmp_path_factory):
    torch.set_num_threads(1)
    assert request.param.partition(":")[0] in known_architectures()
    return harness.load_pair(request.param, tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("check", ["one pass", "chunked", "batched", "prefix hit", "preempted", "greedy"])
def test_same_as_transformers(pair, harness, check):
    outcome = harness.CHECKS[check](pair)
    assert harness.within(outcome), f"relative error {outcome:.1e}"


def test_every_check_is_run(harness):
    assert list(harness.CHECKS) == ["one pass", "chunked", "batched", "prefix hit", "preempted", "greedy"]


@pytest.fixture(scope="module")
def hybrid(harness, tmp_path_factory):
    return harness.load_pair("Lfm2ForCausalLM", tmp_path_factory.mktemp("tiny"))


def test_a_wrong_weight_fails(hybrid, harness):
    weight = next(p for name, p in hybrid.ours.named_parameters() if name.endswith("norm.weight"))
    with torch.no_grad():
        weight += 0.01
        try:
            assert not harness.within(harness.CHECKS["one pass"](hybrid))
        finally:
            weight -= 0.01


def test_lost_checkpoints_fail(hybrid, harness, monkeypatch):
    """Without the states at the borders in between, only a prefix hit goes wrong."""
    forward = type(hybrid.ours).forward

    def forgetful(self, ids, metadata, caches):
        states = [i for i, cache in enumerate(self.caches) if hasattr(cache, "state_shapes")]
        before = [[tensor.clone() for tensor in caches[i]] for i in states]
        hidden = forward(self, ids, metadata, caches)
        for i, saved in zip(states, before, strict=True):
            last = {int(table[(int(n) - 1) // 8]) for table, n in
                    zip(metadata[i].block_tables, metadata[i].context_lens, strict=True)}  # fmt: skip
            lost = [block for block in range(len(saved[0])) if block not in last]
            for tensor, old in zip(caches[i], saved, strict=True):
                tensor[lost] = old[lost]
        return hidden

    monkeypatch.setattr(type(hybrid.ours), "forward", forgetful)
    assert harness.within(harness.CHECKS["chunked"](hybrid))
    assert not harness.within(harness.CHECKS["prefix hit"](hybrid))


def test_garbage_is_what_lies_outside_the_window(harness, tmp_path):
    pair = harness.load_pair("MistralForCausalLM", tmp_path)
    attention = next(cache for cache in pair.ours.caches if cache.window)
    run = harness.PagedRun(pair.ours)
    run.step({"a": list(range(4, 44))})
    (table,) = run._sequences["a"].tables.values()
    first = (40 - attention.window + 1) // 4
    assert table[:first] == [0] * first
    assert all(table[first:])
