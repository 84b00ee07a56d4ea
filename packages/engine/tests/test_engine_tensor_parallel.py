"""Two ranks that share a model against one: the same tokens, through the real engine and its processes."""

import re
import shutil

import pytest
import tokenizers
import torch
import transformers
from llm_engine import LLM, InvalidOption, InvalidRequest, SamplingParams
from llm_engine.errors import StartupError
from llm_engine.grammar import GrammarSpec

SHAPE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PROMPTS = [[5, 9, 31, 77], list(range(10, 60)), [3] * 17]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tiny")
    config = transformers.Qwen3Config(**SHAPE, head_dim=16)
    transformers.Qwen3ForCausalLM(config).save_pretrained(path)
    words = tokenizers.models.WordLevel({f"w{index}": index for index in range(128)}, unk_token="w0")
    tokenizers.Tokenizer(words).save(str(path / "tokenizer.json"))
    return str(path)


def tokens(folder, ranks, **options):
    llm = LLM(
        folder,
        load_format="auto",
        tensor_parallel_size=ranks,
        device="cpu",
        kv_cache_bytes=1 << 20,
        max_model_len=128,
        threads=1,
        progress=False,
        **options,
    )
    try:
        params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, detokenize=False)
        seeded = SamplingParams(temperature=1.0, seed=5, max_tokens=24, ignore_eos=True, detokenize=False)
        outputs = [llm.generate(PROMPTS, choice, progress=False) for choice in (params, seeded)]
        return [item.outputs[0].token_ids for batch in outputs for item in batch]
    finally:
        llm.shutdown()


@pytest.mark.timeout(300)
def test_two_ranks_give_the_tokens_of_one(folder):
    assert tokens(folder, 2) == tokens(folder, 1)


@pytest.mark.timeout(300)
def test_two_ranks_give_the_tokens_of_one_with_fp8_weights(folder):
    """The weights of the ranks are those of one, cut; and they are not the wide ones."""
    narrow = tokens(folder, 1, quantization="fp8")
    assert tokens(folder, 2, quantization="fp8") == narrow
    assert narrow != tokens(folder, 1)


@pytest.mark.timeout(300)
def test_heads_that_cannot_be_shared_out_are_named(folder):
    with pytest.raises(StartupError, match="num_attention_heads"):
        tokens(folder, 3)


def test_a_size_below_one_is_named(folder):
    with pytest.raises(InvalidOption, match="tensor_parallel_size"):
        LLM(folder, tensor_parallel_size=0)


@pytest.fixture
def spelling_folder(folder, tmp_path):
    """The same model, whose tokens are letters."""
    letters = {chr(33 + index): index for index in range(93)}
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(letters, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path)


@pytest.mark.timeout(300)
def test_every_rank_compiles_the_grammars(spelling_folder):
    """The ranks draw the same tokens, so each needs the masks."""
    grammar = GrammarSpec(kind="regex", text="[abc]-[xyz]{3}")
    params = [
        SamplingParams(temperature=1.0, seed=5, max_tokens=8, grammar=grammar),
        SamplingParams(temperature=1.0, seed=5, max_tokens=8, ignore_eos=True),
    ]
    found = []
    for ranks in (1, 2):
        with LLM(
            spelling_folder,
            tensor_parallel_size=ranks,
            device="cpu",
            kv_cache_bytes=1 << 20,
            max_model_len=128,
            threads=1,
            progress=False,
        ) as llm:
            outputs = llm.generate(PROMPTS[:2], params, progress=False)
            found.append([output.outputs[0].token_ids for output in outputs])
            with pytest.raises(InvalidRequest, match="regex"):
                llm.generate([5], SamplingParams(grammar=GrammarSpec(kind="regex", text="(")), progress=False)
            text = outputs[0].outputs[0].text
    assert found[0] == found[1]
    assert re.fullmatch(grammar.text, text)
