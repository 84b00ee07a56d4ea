"""Models of the fallback through `LLM`: batches, chunks, prefix hits and a short pool change no token."""

import random
import warnings

import pytest
import torch
import transformers
from llm_engine import LLM, SamplingParams
from tokenizers import Tokenizer, models

COMMON = {"vocab_size": 500, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
          "num_attention_heads": 4, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1,
          "eos_token_id": 2, "tie_word_embeddings": False}  # fmt: skip
CASES = {"BioGptForCausalLM": "paged", "GPTNeoXJapaneseForCausalLM": "recompute"}
OPTIONS = {
    "dtype": "float32",
    "block_size": 4,
    "max_model_len": 100,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 32,
    "threads": 1,
    "progress": False,
}


@pytest.mark.parametrize("name", CASES)
def test_equals_transformers(name, tmp_path):
    reference = build(name)
    reference.save_pretrained(tmp_path)
    words = models.WordLevel({f"w{i}": i for i in range(500)}, unk_token="w0")
    Tokenizer(words).save(str(tmp_path / "tokenizer.json"))
    rng = random.Random(7)
    stem = rng.choices(range(3, 490), k=30)
    prompts = [rng.choices(range(3, 490), k=rng.randrange(1, 30)) for _ in range(3)]
    prompts += [stem[:length] + rng.choices(range(3, 490), k=5) for length in (18, 30)]
    expected = [greedy(reference, prompt, 12) for prompt in prompts]
    assert len(set(expected)) == len(prompts)
    # 30 blocks hold three rows at most, so that some are preempted.
    llm = LLM(str(tmp_path), device="cpu", kv_cache_bytes=30 * bytes_per_block(name), **OPTIONS)
    try:
        wanted = SamplingParams(max_tokens=12, ignore_eos=True, detokenize=False, temperature=0.0)
        for _ in range(2):
            outputs = llm.generate(prompts, wanted, progress=False)
            assert [output.outputs[0].token_ids for output in outputs] == expected
        assert max(output.num_cached_tokens for output in outputs) >= 16
    finally:
        llm.shutdown()


def build(name):
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    found = getattr(transformers, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = found(found.config_class(**COMMON)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def bytes_per_block(name):
    per_token = 4 if CASES[name] == "recompute" else 2 * 2 * COMMON["hidden_size"] * 4
    return per_token * OPTIONS["block_size"]


@torch.inference_mode()
def greedy(model, prompt, count):
    ids = torch.tensor([prompt])
    for _ in range(count):
        last = model(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, last], 1)
    return tuple(ids[0, len(prompt) :].tolist())
