"""Tokenizers out of GGUF files, against the vocabularies that they were written from; broken files."""

import contextlib
import json
import random
import struct

import pytest
import sentencepiece
import tokenizer_gguf_files
from llm_tokenizer import Tokenizer, TokenizerFileError
from tokenizer_samples import CORPUS, byte_level_bpe, texts, with_split

KIND_OF = {"normal": 1, "unknown": 2, "control": 3, "user": 4, "unused": 5, "byte": 6}


def write(folder, metadata):
    path = folder / "model.gguf"
    path.write_bytes(tokenizer_gguf_files.dump(metadata))
    return path


def byte_level_metadata(reference, pre, **more):
    content = json.loads(reference.to_str())
    vocab = reference.get_vocab(with_added_tokens=True)
    special = {token["content"]: token["special"] for token in content["added_tokens"]}
    tokens = sorted(vocab, key=vocab.get)
    kinds = [
        KIND_OF["control" if special[t] else "user"] if t in special else KIND_OF["normal"] for t in tokens
    ]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in content["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": vocab["<s>"],
        "tokenizer.ggml.eos_token_id": vocab["</s>"],
        "tokenizer.ggml.eot_token_id": vocab["<|im_end|>"],
        "tokenizer.chat_template": "{{ bos_token }}",
        **more,
    }


@pytest.fixture(scope="module")
def reference():
    return byte_level_bpe()


@pytest.mark.parametrize("pre", ["gpt-2", "default", "smollm", "qwen2", "llama-bpe"])
def test_byte_level_vocabularies(reference, tmp_path, pre):
    add_bos = {"tokenizer.ggml.add_bos_token": False}
    tokenizer = Tokenizer.from_file(write(tmp_path, byte_level_metadata(reference, pre, **add_bos)))
    expected = with_split(reference, pre)
    for text in texts(400, seed=11):
        ids = tokenizer.encode(text)
        assert ids == expected.encode(text).ids, text
        assert tokenizer.decode(ids, skip_special_tokens=False) == expected.decode(
            ids, skip_special_tokens=False
        )


def test_what_a_gguf_file_says_around_the_vocabulary(reference, tmp_path):
    more = {
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "tools",
    }
    tokenizer = Tokenizer.from_file(write(tmp_path, byte_level_metadata(reference, "gpt-2", **more)))
    bos, eos, turn = (tokenizer.token_to_id(token) for token in ("<s>", "</s>", "<|im_end|>"))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (bos, eos, None)
    assert tokenizer.eos_token_ids == {eos, turn}
    assert tokenizer.encode("a") == [bos, tokenizer.token_to_id("a"), eos]
    assert tokenizer.encode("a", add_special_tokens=False) == [tokenizer.token_to_id("a")]
    assert tokenizer.encode("") == [bos, eos]
    assert tokenizer.chat_template == "{{ bos_token }}"
    message = {"role": "user", "content": "Hi"}
    assert tokenizer.render_chat([message]) == "<s>"
    assert tokenizer.render_chat([message], tools=[{}]) == "tools"


@pytest.mark.parametrize(("pre", "adds"), [("gpt-2", False), ("llama-bpe", True)])
def test_a_file_that_does_not_say_whether_to_add_the_first_token(reference, tmp_path, pre, adds):
    tokenizer = Tokenizer.from_file(write(tmp_path, byte_level_metadata(reference, pre)))
    assert (tokenizer.encode("a")[0] == tokenizer.bos_token_id) is adds


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "no-prefix"])
def trained_sentence_piece(request, tmp_path_factory):
    """A model trained by sentencepiece itself, and the metadata that a converter would write for it."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in CORPUS for line in text.splitlines()),
        model_prefix=str(folder / "spm"),
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=request.param,
        user_defined_symbols=["<|turn|>"],
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    size = model.vocab_size()
    kinds = [
        KIND_OF["unknown"]
        if model.is_unknown(i)
        else KIND_OF["control"]
        if model.is_control(i)
        else KIND_OF["byte"]
        if model.is_byte(i)
        else KIND_OF["user"]
        if model.id_to_piece(i) == "<|turn|>"
        else KIND_OF["normal"]
        for i in range(size)
    ]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in range(size)],
        "tokenizer.ggml.scores": [float(model.get_score(i)) for i in range(size)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        "tokenizer.ggml.add_space_prefix": request.param,
    }
    return model, Tokenizer.from_file(write(folder, metadata))


def test_sentence_piece_vocabularies_encode_as_sentencepiece(trained_sentence_piece):
    model, tokenizer = trained_sentence_piece
    for text in texts(600, seed=12):
        # sentencepiece drops NUL, takes a control token's name as text, and takes its own marker for a space.
        if any(odd in text for odd in ("\x00", "<s>", "</s>", "<unk>", "<|turn|>", "▁")):
            continue
        ids = tokenizer.encode(text)
        assert ids == [model.bos_id(), *model.encode(text)], text
        assert tokenizer.decode(ids) == model.decode(ids), text


def test_sentence_piece_special_tokens(trained_sentence_piece):
    _, tokenizer = trained_sentence_piece
    assert tokenizer.special_token_ids == {0, 1, 2}
    assert tokenizer.token_to_id("<|turn|>") in tokenizer.encode("a<|turn|>b")
    assert tokenizer.token_bytes(tokenizer.token_to_id("<0x0A>")) == b"\n"


def test_a_folder_with_one_gguf_file(reference, tmp_path):
    write(tmp_path, byte_level_metadata(reference, "gpt-2"))
    assert Tokenizer.from_file(tmp_path).decode(reference.encode("Größe").ids) == "Größe"


def test_every_truncation_of_the_metadata_is_refused(reference, tmp_path):
    data = tokenizer_gguf_files.dump(byte_level_metadata(reference, "gpt-2"))
    path = tmp_path / "model.gguf"
    for size in [*range(300), *range(300, len(data), 97)]:
        path.write_bytes(data[:size])
        with pytest.raises(TokenizerFileError, match=r"truncated|not a GGUF"):
            Tokenizer.from_file(path)


def test_random_damage_never_escapes_the_error_type(reference, tmp_path):
    rng = random.Random(13)
    data = tokenizer_gguf_files.dump(byte_level_metadata(reference, "gpt-2"))
    path = tmp_path / "model.gguf"
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            broken[rng.randrange(len(broken))] = rng.randrange(256)
        path.write_bytes(broken)
        with contextlib.suppress(TokenizerFileError):
            Tokenizer.from_file(path).encode("a b")


LARGE = 2**62


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated"),
        (b"GGML" + bytes(40), "not a GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version 1 is not supported"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "version 50331648 is not supported"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, LARGE), "truncated"),
        (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, LARGE), "truncated"),
        (struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 99), "unknown value type 99 in the value of k"),
        (struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 8, LARGE), "truncated"),
        (struct.pack("<4sIQQQ1sIQ1s", b"GGUF", 3, 0, 1, 1, b"k", 8, 1, b"\xff"), "not UTF-8"),
        (struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 9, "too deep"),
        (tokenizer_gguf_files.dump({}), "no tokenizer"),
    ],
)
def test_broken_files(tmp_path, data, message):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(TokenizerFileError, match=message):
        Tokenizer.from_file(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.pre": "martian"}, "'martian'|\"martian\""),
        ({"tokenizer.ggml.model": "plamo2"}, '"plamo2"'),
        ({"tokenizer.ggml.model": "bert"}, "unknown_token_id"),
        ({"tokenizer.ggml.tokens": []}, "tokens"),
        ({"tokenizer.ggml.tokens": "text"}, "tokenizer.ggml.tokens is not a list"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "tokenizer.ggml.tokens is not a list of texts"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "token_type has"),
        ({"tokenizer.ggml.token_type": [1]}, "token_type has 1 entries"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, "bos_token_id is 1000000"),
        ({"tokenizer.ggml.eos_token_id": -1}, "eos_token_id is -1"),
        ({"tokenizer.ggml.eos_token_id": "2"}, "eos_token_id is not an integer"),
        ({"tokenizer.ggml.add_bos_token": 1}, "add_bos_token is not a truth value"),
        ({"tokenizer.ggml.merges": ["ab"]}, "merges"),
        ({"tokenizer.ggml.merges": ["a notatoken"]}, "tokenizer.json"),
        ({"tokenizer.ggml.model": "llama"}, "scores"),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [1.0]}, "scores has 1 entries"),
        ({"tokenizer.chat_template": 5}, "chat_template is not a text"),
    ],
)
def test_metadata_that_makes_no_sense(reference, tmp_path, change, message):
    metadata = byte_level_metadata(reference, "gpt-2", **change)
    with pytest.raises(TokenizerFileError, match=message):
        Tokenizer.from_file(write(tmp_path, metadata))
