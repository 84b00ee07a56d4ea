"""Encoders, embedders and reward models against transformers: tiny models of each, and the real one."""

import importlib
import json
import math
import os
import sys
from pathlib import Path

import pytest
import torch
import transformers
from llm_models import (
    ConfigError,
    UnsupportedConfig,
    is_pooling,
    load_pooling_model,
    pooled_spec_for,
    pooled_spec_of,
    resolve,
)
from llm_models.rope import inverse_frequencies
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parents[3]
CASES = [
    "DistilBertForSequenceClassification",
    "ElectraForSequenceClassification",
    "AlbertForTokenClassification",
    "MPNetForSequenceClassification",
    "DebertaModel",
    "DebertaV2ForSequenceClassification",
    "DebertaV2Model:third",
    "ModernBertForSequenceClassification:mean-biases",
    "ModernBertModel",
    "NomicBertModel",
    "GteForSequenceClassification",
    "JinaEmbeddingsV3Model",
    "EuroBertForSequenceClassification",
    "RobertaPreLayerNormForSequenceClassification",
    "XLMRobertaXLModel",
    "Gemma3TextModel:both-sides",
]
QWEN = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}


@pytest.fixture(scope="module")
def harness():
    """The parity harness, imported from scripts/ as a package."""
    sys.path.insert(0, str(ROOT))
    try:
        yield importlib.import_module("scripts.model_parity.pooling_checks")
    finally:
        sys.path.remove(str(ROOT))


@pytest.mark.parametrize("case", CASES)
def test_encodes_as_transformers_does(harness, tmp_path, case):
    torch.set_num_threads(1)
    pair = harness.load_pooling_pair(case, tmp_path)
    errors = {name: check(pair) for name, check in harness.checks_of(pair).items()}
    assert len(errors) >= 2
    assert max(errors.values()) <= 1e-4, errors


def config_of(name, **changes):
    config = getattr(transformers, name).config_class().to_dict()
    return json.loads(json.dumps(config | {"architectures": [name]})) | changes


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("AlbertModel", {"num_hidden_groups": 2}),
        ("MPNetModel", {"relative_attention_num_buckets": 16}),
        ("DebertaV2Model", {"relative_attention": True, "pos_att_type": ["p2p"]}),
        ("DebertaV2Model", {"relative_attention": True, "pos_att_type": "c2p|p2c", "conv_kernel_size": 3}),
        ("DebertaV2Model", {"relative_attention": False}),
        ("ModernBertForSequenceClassification", {"classifier_pooling": "max"}),
        ("EuroBertForSequenceClassification", {"classifier_pooling": "max"}),
        ("NomicBertModel", {"prenorm": True}),
        ("GteModel", {"logn_attention_scale": True}),
        ("BertModel", {"position_embedding_type": "relative_key"}),
    ],
)
def test_what_is_not_done_is_refused(name, changes):
    with pytest.raises(UnsupportedConfig) as caught:
        pooled_spec_for(config_of(name, **changes))
    assert caught.value.field in changes


def test_configs_of_the_hub_are_read():
    nomic = {
        "architectures": ["NomicBertModel"],
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_inner": 3072,
        "n_positions": 8192,
        "activation_function": "swiglu",
        "layer_norm_epsilon": 1e-12,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "type_vocab_size": 2,
        "vocab_size": 30528,
    }
    body = pooled_spec_for(nomic).body
    assert (body.max_positions, len(body.layers), body.layers[0].branches[0].blocks[0].rope.theta) == (
        8192,
        12,
        1000.0,
    )
    old = config_of("ModernBertModel", global_rope_theta=160000.0, local_rope_theta=20000.0)
    for field in ("rope_parameters", "layer_types"):
        old.pop(field)
    mixers = [layer.branches[0].blocks[0] for layer in pooled_spec_for(old).body.layers]
    assert [mixer.sliding_window for mixer in mixers[:4]] == [None, 65, 65, None]
    assert [mixer.rope.theta for mixer in mixers[:2]] == [160000.0, 20000.0]


def test_fixed_ntk_scaling_of_gte():
    """https://kexue.fm/archives/9706: the base times the factor, and every frequency a little lower."""
    new = config_of("GteModel", architectures=["NewModel"], model_type="new", rope_theta=20000)
    new |= {"rope_parameters": None, "rope_scaling": {"type": "ntk", "factor": 8.0}}
    rope = pooled_spec_for(new).body.layers[0].branches[0].blocks[0].rope
    steps = torch.arange(0, 64, 2, dtype=torch.float64) / 64
    expected = (20000 * 8.0) ** -steps / 8.0 ** (2 / 64)
    torch.testing.assert_close(inverse_frequencies(rope)[0].double(), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ["Qwen2ForRewardModel", "Qwen2ForProcessRewardModel"])
@torch.no_grad()
def test_reward_heads(tmp_path, name):
    torch.manual_seed(0)
    body = transformers.Qwen2Model(transformers.Qwen2Config(**QWEN)).eval()
    body.save_pretrained(tmp_path)
    size = 1 if name == "Qwen2ForRewardModel" else 2
    score = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, size))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {f"model.{key}": x for key, x in tensors.items()}
    save_file(
        tensors | {f"score.{k}": x for k, x in score.state_dict().items()}, tmp_path / "model.safetensors"
    )
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": [name]}
    (tmp_path / "config.json").write_text(json.dumps(config))

    texts = [[5, 6, 7, 8, 9, 10, 11], [40, 3]]
    got = load_pooling_model(resolve(str(tmp_path)), dtype=torch.float32, device="cpu").run(texts)

    for text, found in zip(texts, got, strict=True):
        scores = score(body(torch.tensor([text])).last_hidden_state[0])
        torch.testing.assert_close(found, scores if size == 2 else scores[-1], atol=1e-5, rtol=1e-5)


# Folders of sentence-transformers


@pytest.fixture
def folder(tmp_path):
    """A tiny BERT; the tests add the modules."""
    fields = {key: value for key, value in QWEN.items() if key != "num_key_value_heads"}
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**fields)).save_pretrained(tmp_path)
    return tmp_path


def write_modules(folder, modules, pooling):
    entries = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in modules]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))


PLAIN = [("Transformer", ""), ("Pooling", "1_Pooling")]


@pytest.mark.parametrize(
    ("field", "kind"),
    [("cls_token", "cls"), ("mean_tokens", "mean"), ("max_tokens", "max"), ("lasttoken", "last")],
)
def test_pooling_follows_the_folder(folder, field, kind):
    write_modules(folder, PLAIN, {f"pooling_mode_{field}": True})
    files = resolve(str(folder))
    assert is_pooling(files)
    assert pooled_spec_of(files).pooling == kind
    texts = [[5, 6, 7], [9], [3, 4, 5, 6]]
    with torch.no_grad():
        reference = transformers.BertModel.from_pretrained(folder).eval()
        states = [reference(torch.tensor([text])).last_hidden_state[0] for text in texts]
    expected = {
        "cls": [x[0] for x in states],
        "mean": [x.mean(0) for x in states],
        "max": [x.amax(0) for x in states],
        "last": [x[-1] for x in states],
    }[kind]
    got = load_pooling_model(files, dtype=torch.float32, device="cpu").run(texts)
    torch.testing.assert_close(torch.stack(got), torch.stack(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("modules", "pooling", "field"),
    [
        (PLAIN, {"pooling_mode_weightedmean_tokens": True}, "pooling_mode"),
        (PLAIN, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "pooling_mode"),
        (PLAIN, {}, "pooling_mode"),
        (PLAIN, {"pooling_mode": "mean", "include_prompt": False}, "include_prompt"),
        ([*PLAIN, ("LSTM", "2_LSTM")], {"pooling_mode": "mean"}, "modules.json"),
        ([("WordEmbeddings", "0_WordEmbeddings")], {}, "modules.json"),
        (PLAIN[:1], {}, "modules.json"),
    ],
)
def test_modules_that_are_not_done_are_refused(folder, modules, pooling, field):
    write_modules(folder, modules, pooling)
    with pytest.raises(UnsupportedConfig) as caught:
        pooled_spec_of(resolve(str(folder)))
    assert caught.value.field == field


def test_broken_module_files_are_refused(folder):
    write_modules(folder, PLAIN, {"pooling_mode": "mean"})
    (folder / "1_Pooling/config.json").unlink()
    with pytest.raises(ConfigError, match=r"config\.json"):
        pooled_spec_of(resolve(str(folder)))
    (folder / "modules.json").write_text("{")
    with pytest.raises(ConfigError, match="not valid JSON"):
        pooled_spec_of(resolve(str(folder)))


# The real model

SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "A man is riding a horse.",
    "A woman is playing violin.",
    "Two men pushed carts through the woods.",
    "A man is riding a white horse on an enclosed ground.",
    "A monkey is playing drums.",
    "A cheetah is running behind its prey.",
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "def add(a, b): return a + b",
    "Paris",
    "\u00dcber den Wolken mu\u00df die Freiheit wohl grenzenlos sein.",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3067\u3059\u3002",
    "1234567890 + 987654321 = ?",
    "emoji \U0001f600 and \U0001f680",
    "The quick brown fox jumps over the lazy dog. " * 12,
    "word " * 200,
]


def minilm():
    named = os.environ.get("LLM_STACK_TEST_ASSETS")
    root = Path(named) if named else Path.home() / ".cache" / "llm-stack" / "test-assets"
    return root / "minilm"


@pytest.mark.skipif(
    not (minilm() / "model.safetensors").is_file(), reason="python scripts/fetch_test_assets.py --only minilm"
)
@torch.no_grad()
def test_the_real_embedder():
    """all-MiniLM-L6-v2 against the mean of transformers' states, and against the published cosine."""
    folder = minilm()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = [tokenizer(text, truncation=False)["input_ids"] for text in SENTENCES]
    ours = load_pooling_model(resolve(str(folder)), dtype=torch.float32, device="cpu")
    assert ours.spec.longest == 256
    vectors = torch.stack(ours.run(texts))
    reference = transformers.AutoModel.from_pretrained(folder).eval()
    for text, vector in zip(texts, vectors, strict=True):
        expected = reference(torch.tensor([text])).last_hidden_state[0].mean(0)
        assert torch.cosine_similarity(vector, expected, dim=0) >= 0.9999
    assert math.isclose((vectors[0] @ vectors[1]).item(), 0.755, abs_tol=5e-4)
