"""SentencePiece model files against the sentencepiece package: real ones, trained ones, broken ones."""

import contextlib
import json
import random

import pytest
import sentencepiece
from llm_tokenizer import Tokenizer, TokenizerFileError
from tokenizer_assets import asset
from tokenizer_corpus import corpus, fresh_seed
from tokenizer_samples import CORPUS

MISTRAL = [
    "tokenizer.model.v1",
    "mistral_instruct_tokenizer_240216.model.v2",
    "mistral_instruct_tokenizer_240323.model.v3",
    "mistral_instruct_tokenizer_241114.model.v7",
]


def check_plain_text(tokenizer, model, seed, texts):
    """Ids as the package's, which takes names of control pieces as text; and texts of random ids."""
    for text in texts:
        # The package drops NUL.
        if "\x00" not in text:
            ids = tokenizer.encode(text, add_special_tokens=False, allow_special=False)
            assert ids == model.encode(text), (seed, text)
            assert tokenizer.decode(ids) == model.decode(ids) or model.unk_id() in ids, (seed, text)
    rng = random.Random(seed)
    # Bytes that are not UTF-8 are shown as the `tokenizers` library does it: one mark for each byte of a run.
    odd = (model.is_control, model.is_unknown, model.is_byte)
    plain = [i for i in range(model.vocab_size()) if not any(kind(i) for kind in odd)]
    spaced = [i for i in plain if model.id_to_piece(i).startswith("▁")]
    spaces = [i for i in spaced if model.id_to_piece(i) == "▁"]
    for _ in range(100):
        ids = [*rng.choices(spaced, k=rng.randint(0, 3)), *rng.choices(plain, k=rng.randint(0, 12))]
        ids = rng.choice([[], spaces]) + ids
        assert tokenizer.decode(ids) == model.decode(ids), (seed, ids)


@pytest.mark.parametrize("file", MISTRAL)
def test_the_models_of_mistral(file):
    path = asset(f"mistral/{file}")
    model, tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(path)), Tokenizer.from_file(path)
    named = {tokenizer.id_to_token(i) for i in tokenizer.special_token_ids}
    seed = fresh_seed()
    check_plain_text(tokenizer, model, seed, corpus(seed, 90, specials=named))
    assert tokenizer.encode("a</s>")[0] == tokenizer.bos_token_id == 1
    assert (tokenizer.eos_token_id, tokenizer.encode("a</s>")[-1]) == (2, 2)
    assert tokenizer.vocab_size == model.vocab_size()


def test_mistral_v1_equals_llama2s_tokenizer_json():
    tokenizer, other = (
        Tokenizer.from_file(asset("mistral/tokenizer.model.v1")),
        Tokenizer.from_file(asset("lenml/llama2")),
    )
    seed = fresh_seed()
    for text in corpus(seed, 60, specials=["<s>", "</s>", "<unk>"]):
        assert tokenizer.encode(text) == other.encode(text), (seed, text)


def test_the_unigram_model_of_ai21():
    path = asset("ai21/j2-tokenizer.model")
    model, tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(path)), Tokenizer.from_file(path)
    # Not in here: runs of one letter, which have several best cuts, and clusters that its character map
    # changes, where the `tokenizers` library maps whole clusters and the package maps characters.
    seed = fresh_seed()
    words = " ".join(CORPUS[:2]).split()
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(words, k=rng.randint(1, 30))) for _ in range(100)]
    texts += ["Hello, world!", "  two  spaces ", "Größe 日本語 русский", "one\ttwo\nthree", "<|endoftext|> x"]
    check_plain_text(tokenizer, model, seed, texts)
    assert tokenizer.encode("Hi")[0] != tokenizer.bos_token_id


def train(folder, **options):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in CORPUS for line in text.splitlines()),
        model_prefix=str(folder / "spm"),
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return folder / "spm.model"


KINDS = {
    "bpe": {
        "model_type": "bpe",
        "vocab_size": 420,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
    },
    "bpe-nfkc": {"model_type": "bpe", "vocab_size": 420, "byte_fallback": True},
    "bpe-unknown": {"model_type": "bpe", "vocab_size": 160, "normalization_rule_name": "identity"},
    "unigram": {"model_type": "unigram", "vocab_size": 150, "hard_vocab_limit": False},
    "unigram-bytes": {
        "model_type": "unigram",
        "vocab_size": 420,
        "hard_vocab_limit": False,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
    },
}


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_trained_models(tmp_path, kind, prefix, extra):
    path = train(
        tmp_path,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=extra,
        character_coverage=0.98,
        **KINDS[kind],
    )
    model, tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(path)), Tokenizer.from_file(path)
    seed = fresh_seed()
    rng = random.Random(seed)
    words = [*" ".join(CORPUS).replace("\u00a0", " ").split(" "), "", "", "ž", "日", "x1"]
    texts = [" ".join(rng.choices(words, k=rng.randint(0, 15))) for _ in range(150)]
    check_plain_text(tokenizer, model, seed, texts)


def test_user_defined_and_control_symbols(tmp_path):
    path = train(
        tmp_path,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        user_defined_symbols=["<|turn|>"],
        control_symbols=["<ctl>"],
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
    )
    model, tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(path)), Tokenizer.from_file(path)
    turn, control = model.piece_to_id("<|turn|>"), model.piece_to_id("<ctl>")
    for text in ("a<|turn|>b", "<|turn|>", " <|turn|> <|turn|>x", "<ctl> and <s>"):
        assert tokenizer.encode(text, add_special_tokens=False, allow_special=False) == model.encode(text)
    assert turn in tokenizer.encode("a<|turn|>b")
    assert control in tokenizer.encode("a<ctl>b")
    assert control in tokenizer.special_token_ids
    assert turn not in tokenizer.special_token_ids


def test_a_configuration_beside_the_model_says_what_goes_around_a_text(tmp_path):
    train(tmp_path, model_type="bpe", vocab_size=200).rename(tmp_path / "tokenizer.model")
    plain = Tokenizer.from_file(tmp_path)
    assert plain.encode("a b") == [1, *plain.encode("a b", add_special_tokens=False)]
    config = {"add_bos_token": False, "add_eos_token": True, "chat_template": "{{ eos_token }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_file(tmp_path)
    assert tokenizer.encode("a b") == [*plain.encode("a b", add_special_tokens=False), 2]
    assert tokenizer.render_chat([{"role": "user", "content": "x"}]) == "</s>"
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": "yes"}')
    with pytest.raises(TokenizerFileError, match="add_bos_token"):
        Tokenizer.from_file(tmp_path)


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    return train(tmp_path_factory.mktemp("spm"), model_type="bpe", vocab_size=200).read_bytes()


def test_truncations_are_refused_or_lack_only_what_has_a_default(small_model, tmp_path):
    path = tmp_path / "spm.model"
    sizes = [*range(1, 60), *range(60, len(small_model), 211)]
    outcomes = [_refusal(path, small_model[:size]) for size in sizes]
    refusals = [reason for reason in outcomes if reason is not None]
    assert len(refusals) > len(sizes) * 0.9
    assert all(str(path) in reason for reason in refusals)


def _refusal(path, content):
    path.write_bytes(content)
    try:
        Tokenizer.from_file(path).encode("a b")
    except TokenizerFileError as error:
        return str(error)
    return None


def test_random_damage_never_escapes_the_error_type(small_model, tmp_path):
    seed = fresh_seed()
    rng = random.Random(seed)
    path = tmp_path / "spm.model"
    for _ in range(150):
        broken = bytearray(small_model)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        path.write_bytes(broken)
        with contextlib.suppress(TokenizerFileError):
            Tokenizer.from_file(path).encode("a b")


def test_kinds_of_models_that_are_not_supported(tmp_path):
    path = train(tmp_path, model_type="char", vocab_size=80)
    with pytest.raises(TokenizerFileError, match="model type 4"):
        Tokenizer.from_file(path)
    path = train(tmp_path, model_type="bpe", vocab_size=200, treat_whitespace_as_suffix=True)
    with pytest.raises(TokenizerFileError, match="treat_whitespace_as_suffix"):
        Tokenizer.from_file(path)
