"""Small random models that give vectors or scores, written to folders; knows nothing of the server."""

import json
import os
from pathlib import Path

import tokenizers
import torch
import transformers
from llm_engine import EngineOptions

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "on",
    "mat",
    "eats",
    "food",
    "now",
]
SIZE = 96
MAX_TOKENS = 1024


def options(folder):
    """How the tests run a model."""
    return EngineOptions(model=str(folder), device="cpu", dtype="float32", threads=1, progress=False)


def write_bert(folder, name="BertModel", *, config=None, **fields):
    """A BERT with random weights and words as tokens; `config` is put into its config.json."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 32,
        "hidden_size": SIZE,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": MAX_TOKENS,
        "initializer_range": 0.3,
        "pad_token_id": 0,
    }
    getattr(transformers, name)(transformers.BertConfig(**(sizes | fields))).eval().save_pretrained(folder)
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    words.save(str(folder / "tokenizer.json"))
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | (config or {})))
    return folder


def write_embedder(folder, **more):
    """A folder as sentence-transformers writes it: the mean of all tokens, of length 1."""
    write_bert(folder, **more)
    parts = (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in parts]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder


def minilm():
    """Where the real all-MiniLM-L6-v2 is, if it was fetched."""
    named = os.environ.get("LLM_STACK_TEST_ASSETS")
    root = Path(named) if named else Path.home() / ".cache" / "llm-stack" / "test-assets"
    return root / "minilm"
