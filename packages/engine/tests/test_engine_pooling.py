"""Embedding, scoring, classifying and rewarding through `LLM`, against transformers on tiny models."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from llm_engine import LLM, ContextLengthExceeded, InvalidRequest, TokensPrompt, UnsupportedTask
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = [
    *SPECIAL,
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "on",
    "mat",
    "eats",
    "food",
    "and",
    "sleeps",
    "well",
    "now",
]
TEXTS = ["the cat sat on the mat", "a dog eats", "the dog sleeps well and the cat eats food now", "cat"]
PAIRS = [("the cat", "a cat sat"), ("a dog eats food", "the mat"), ("dog", "the dog sleeps well and now")]
SMALL = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
OPTIONS = {"device": "cpu", "dtype": "float32", "threads": 1, "progress": False}


def tokenizer():
    library = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return library


def make(folder, name, config, **fields):
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**(SMALL | fields))).eval()
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    return model


def add_modules(folder, *, dense=None, pooling="mean_tokens", normalize=True, **more):
    kinds = [
        "Transformer",
        "Pooling",
        *(["Dense"] if dense is not None else []),
        *(["Normalize"] if normalize else []),
    ]
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense", "Normalize": "3_Normalize"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": paths[kind]} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True} | more))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 16}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "the "}}))
    if dense is not None:
        (folder / "2_Dense").mkdir()
        save_file({"linear.weight": dense}, folder / "2_Dense/model.safetensors")
        about = {
            "in_features": dense.shape[1],
            "out_features": dense.shape[0],
            "bias": False,
            "activation_function": "torch.nn.modules.activation.Tanh",
        }
        (folder / "2_Dense/config.json").write_text(json.dumps(about))


@torch.no_grad()
def states(model, text):
    return model(torch.tensor([tokenizer().encode(text).ids])).last_hidden_state[0]


@torch.no_grad()
def logits(model, *texts):
    one = tokenizer().encode(*texts)
    return model(torch.tensor([one.ids]), token_type_ids=torch.tensor([one.type_ids])).logits[0]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A sentence-transformers folder: BERT, mean, a dense layer, normalised; and what its vectors must be."""
    folder = tmp_path_factory.mktemp("bert")
    model = make(folder, "BertModel", "BertConfig")
    dense = torch.randn(24, 32, generator=torch.Generator().manual_seed(1)) * 0.3
    add_modules(folder, dense=dense)
    raw = [torch.tanh(dense @ states(model, text).mean(0)) for text in TEXTS]
    with LLM(str(folder), max_num_batched_tokens=16, **OPTIONS) as llm:
        yield llm, np.stack([one.numpy() for one in raw])


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def vectors(outputs):
    return np.stack([output.embedding for output in outputs])


def test_embeds_as_a_sentence_transformers_folder_says(bert):
    llm, raw = bert
    outputs = llm.embed(TEXTS, progress=False)
    assert vectors(outputs) == pytest.approx(unit(raw), abs=1e-5)
    assert [output.num_prompt_tokens for output in outputs] == [len(t.split()) + 2 for t in TEXTS]
    assert vectors(llm.embed(TEXTS, normalize=False, progress=False)) == pytest.approx(raw, abs=1e-5)
    assert llm.prompts == {"query": "the "}


def test_short_vectors_are_normalised_again(bert):
    llm, raw = bert
    assert vectors(llm.embed(TEXTS, dimensions=5, progress=False)) == pytest.approx(
        unit(raw[:, :5]), abs=1e-5
    )
    short = llm.embed(TEXTS, dimensions=5, normalize=False, progress=False)
    assert vectors(short) == pytest.approx(raw[:, :5], abs=1e-5)
    for bad in (0, 25, True, 1.5):
        with pytest.raises(InvalidRequest, match="dimensions"):
            llm.embed(TEXTS, dimensions=bad, progress=False)


def test_a_vector_of_each_token(tmp_path):
    model = make(tmp_path, "BertModel", "BertConfig")
    with LLM(str(tmp_path), **OPTIONS) as llm:
        outputs = llm.embed(TEXTS, per_token=True, normalize=False, progress=False)
        short = llm.embed(TEXTS, per_token=True, normalize=True, dimensions=5, progress=False)
    for text, output, cut in zip(TEXTS, outputs, short, strict=True):
        want = states(model, text).numpy()
        assert output.embedding == pytest.approx(want, abs=1e-4)
        assert cut.embedding == pytest.approx(unit(want[:, :5]), abs=1e-4)


def test_no_pass_exceeds_the_budget(bert):
    llm, _ = bert
    client, passes = llm._client, []
    call, client.call = client.call, lambda method, *args: passes.append(args[0]) or call(method, *args)
    try:
        llm.embed(TEXTS * 3, progress=False)
    finally:
        client.call = call
    assert sum(map(len, passes)) == len(TEXTS) * 3
    assert len(passes) < len(TEXTS) * 3
    assert all(sum(map(len, texts)) <= 16 for texts in passes)


def test_long_texts_are_refused_or_cut_between_the_special_tokens(bert):
    llm, _ = bert
    long = "the cat eats food " * 5
    with pytest.raises(ContextLengthExceeded, match="22 tokens; the model takes at most 16") as caught:
        llm.embed(["cat", long], progress=False)
    assert caught.value.field == "texts[1]"
    (cut,) = llm.embed(long, truncate=6, progress=False)
    (same,) = llm.embed("the cat eats food", progress=False)
    assert cut.num_prompt_tokens == 6
    assert cut.embedding == pytest.approx(same.embedding, abs=1e-6)
    for bad in (0, 17, "6"):
        with pytest.raises(InvalidRequest, match="truncate"):
            llm.embed("cat", truncate=bad, progress=False)
    with pytest.raises(ContextLengthExceeded, match="no room"):
        llm.embed("the cat", truncate=2, progress=False)


@pytest.mark.parametrize(
    "bad", ["", [], [""], [[]], [[99]], [[-1]], [["cat"]], 7, b"cat", [TokensPrompt([])]]
)
def test_bad_texts_are_refused(bert, bad):
    with pytest.raises(InvalidRequest, match="texts"):
        bert[0].embed(bad, progress=False)


def test_scores_are_cosines(bert):
    llm, raw = bert
    expected = unit(raw[:1]) @ unit(raw).T
    scores = [output.score for output in llm.score(TEXTS[0], TEXTS, progress=False)]
    assert scores == pytest.approx(expected[0].tolist(), abs=1e-5)
    with pytest.raises(InvalidRequest, match="texts: there are 4 for 3 queries"):
        llm.score(TEXTS[:3], TEXTS, progress=False)
    with pytest.raises(InvalidRequest, match="query: must hold pairs"):
        llm.score(TEXTS, progress=False)


def test_an_embedder_does_not_generate(bert):
    llm, _ = bert
    for ask in (
        lambda: llm.generate("cat"),
        lambda: llm.chat([{"role": "user", "content": "cat"}]),
        llm.stats,
    ):
        with pytest.raises(UnsupportedTask, match="call embed or score"):
            ask()
    for ask in (llm.classify, llm.reward):
        with pytest.raises(UnsupportedTask, match="call embed"):
            ask("cat")
    assert llm._client.info.num_blocks == 0


def test_a_cross_encoder_scores_pairs(tmp_path):
    model = make(tmp_path, "BertForSequenceClassification", "BertConfig", num_labels=1)
    expected = [torch.sigmoid(logits(model, *pair)).item() for pair in PAIRS]
    with LLM(str(tmp_path), **OPTIONS) as llm:
        outputs = llm.score(PAIRS, progress=False)
        assert [output.score for output in outputs] == pytest.approx(expected, abs=1e-5)
        assert [output.num_prompt_tokens for output in outputs] == [8, 9, 10]
        queries, texts = zip(*PAIRS, strict=True)
        again = llm.score(list(queries), list(texts), progress=False)
        assert [output.score for output in again] == [output.score for output in outputs]
        (cut,) = llm.score("the cat sat on the mat", "dog eats", truncate=8, progress=False)
        (same,) = llm.score("the cat sat", "dog eats", progress=False)
        assert cut.score == pytest.approx(same.score, abs=1e-6)
        with pytest.raises(ContextLengthExceeded, match="texts"):
            llm.score("cat", "the " * 60, progress=False)
        with pytest.raises(UnsupportedTask, match="call score"):
            llm.embed("cat", progress=False)


def test_raw_scores_where_the_config_says_so(tmp_path):
    model = make(tmp_path, "BertForSequenceClassification", "BertConfig", num_labels=1)
    config = json.loads((tmp_path / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with LLM(str(tmp_path), **OPTIONS) as llm:
        (output,) = llm.score(*PAIRS[0], progress=False)
    assert output.score == pytest.approx(logits(model, *PAIRS[0]).item(), abs=1e-5)


def test_classifies_texts_and_tokens(tmp_path):
    names = {0: "good", 1: "bad", 2: "ugly"}
    for kind in ("Sequence", "Token"):
        folder = tmp_path / kind
        folder.mkdir()
        model = make(folder, f"BertFor{kind}Classification", "BertConfig", id2label=names, num_labels=3)
        with LLM(str(folder), **OPTIONS) as llm:
            outputs = llm.classify(TEXTS, progress=False)
            rewards = llm.reward(TEXTS, progress=False)
            with pytest.raises(UnsupportedTask, match="call classify"):
                llm.score("cat", "dog", progress=False)
        for text, output, reward in zip(TEXTS, outputs, rewards, strict=True):
            raw = logits(model, text)
            assert output.probabilities == pytest.approx(raw.softmax(-1).numpy(), abs=1e-5)
            assert reward.rewards == pytest.approx(raw.numpy(), abs=1e-4)
            if kind == "Sequence":
                assert output.label == names[int(raw.argmax())]
            else:
                assert output.token_labels == tuple(names[i] for i in raw.argmax(-1).tolist())


def test_a_language_model_gives_the_last_token(tmp_path):
    fields = {"num_key_value_heads": 2, "eos_token_id": 3, "bos_token_id": 2}
    model = make(tmp_path, "LlamaForCausalLM", "LlamaConfig", **fields)
    with LLM(str(tmp_path), kv_cache_bytes=1 << 20, **OPTIONS) as llm:
        before = llm.generate("the cat", progress=False)[0].outputs[0].token_ids
        got = vectors(llm.embed(TEXTS, progress=False))
        expected = np.stack([states(model.model, text)[-1].numpy() for text in TEXTS])
        assert got == pytest.approx(unit(expected), abs=1e-5)
        assert llm.generate("the cat", progress=False)[0].outputs[0].token_ids != ()
        with pytest.raises(UnsupportedTask, match="call embed"):
            llm.classify("cat", progress=False)
    assert before


def test_a_sequence_classifier_over_a_decoder_is_a_reward_model(tmp_path):
    model = make(
        tmp_path, "Qwen2ForSequenceClassification", "Qwen2Config", num_labels=1, num_key_value_heads=2
    )
    with torch.no_grad():
        expected = [model(torch.tensor([tokenizer().encode(text).ids])).logits.item() for text in TEXTS]
    with LLM(str(tmp_path), **OPTIONS) as llm:
        outputs = llm.reward(TEXTS, progress=False)
    assert [output.reward for output in outputs] == pytest.approx(expected, abs=1e-4)


def test_what_is_not_done_is_refused(tmp_path):
    from llm_engine import StartupError

    make(tmp_path, "BertModel", "BertConfig")
    add_modules(tmp_path, pooling="weightedmean_tokens")
    with pytest.raises(StartupError, match="weightedmean"):
        LLM(str(tmp_path), **OPTIONS)


def minilm():
    named = os.environ.get("LLM_STACK_TEST_ASSETS")
    root = Path(named) if named else Path.home() / ".cache" / "llm-stack" / "test-assets"
    return root / "minilm"


@pytest.mark.skipif(
    not (minilm() / "model.safetensors").is_file(), reason="python scripts/fetch_test_assets.py --only minilm"
)
def test_the_real_embedder_gives_the_published_cosine():
    with LLM(str(minilm()), **OPTIONS) as llm:
        pair = ("A man is eating food.", "A man is eating a piece of bread.")
        (score,) = llm.score(*pair, progress=False)
        one, other = llm.embed(list(pair), progress=False)
        with pytest.raises(ContextLengthExceeded, match="the model takes at most 256"):
            llm.embed("word " * 300, progress=False)
        (cut,) = llm.embed("word " * 300, truncate=llm.max_model_len, progress=False)
    assert score.score == pytest.approx(0.755, abs=5e-4)
    assert float(one.embedding @ other.embedding) == pytest.approx(score.score, abs=1e-5)
    assert (one.num_prompt_tokens, cut.num_prompt_tokens) == (8, 256)
