"""Folders of Hugging Face files, against transformers' loading of the same folder; broken folders."""

import json

import pytest
from llm_tokenizer import Tokenizer, TokenizerFileError
from tokenizer_samples import byte_level_bpe, sentence_piece_with_prefix, texts
from transformers import PreTrainedTokenizerFast

PLAIN = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
AS_OBJECTS = {
    name: {"__type": "AddedToken", "content": text, "lstrip": False, "normalized": False, "special": True}
    for name, text in PLAIN.items()
}


def make_folder(folder, config=None, special_tokens_map=None, template=None, build=byte_level_bpe, size=None):
    build().save(str(folder / "tokenizer.json"))
    if config is not None:
        base = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        (folder / "tokenizer_config.json").write_text(json.dumps({**base, **config}))
    if special_tokens_map is not None:
        (folder / "special_tokens_map.json").write_text(json.dumps(special_tokens_map))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.mark.parametrize("build", [byte_level_bpe, sentence_piece_with_prefix])
@pytest.mark.parametrize(
    "config",
    [
        PLAIN,
        AS_OBJECTS,
        {**PLAIN, "add_bos_token": True},
        {**PLAIN, "add_bos_token": False, "add_eos_token": True},
        {**PLAIN, "add_bos_token": True, "add_eos_token": True},
        {**PLAIN, "pad_token": "<pad>"},
        {"bos_token": None, "eos_token": "<|im_end|>", "add_bos_token": False},
        {**PLAIN, "model_max_length": 8},
    ],
    ids="+".join,
)
def test_a_folder_encodes_as_in_transformers(tmp_path, build, config):
    make_folder(tmp_path, config, build=build)
    ours, theirs = Tokenizer.from_file(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for text in texts(150, seed=21):
        for add in (False, True):
            ids = ours.encode(text, add_special_tokens=add)
            assert ids == theirs.encode(text, add_special_tokens=add), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_tokens_that_only_the_configuration_lists(tmp_path):
    size = max(byte_level_bpe().get_vocab(with_added_tokens=True).values()) + 1
    listed = {
        str(size): {"content": "<|new|>", "special": True, "normalized": False},
        str(size + 1): {"content": "<plain>", "special": False, "normalized": False},
    }
    make_folder(tmp_path, {**PLAIN, "added_tokens_decoder": listed})
    ours, theirs = Tokenizer.from_file(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    text = "a<|new|>b<plain>c</s>"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.vocab_size == size + 2
    assert (
        ours.decode(ours.encode(text))
        == "ab<plain>c"
        == theirs.decode(ours.encode(text), skip_special_tokens=True)
    )


IMAGE = {**AS_OBJECTS["eos_token"], "content": "<image>"}
SHOW_NAMES = "".join(
    f"{{{{ {name} }}}}|" for name in ("eos_token", "image_token", "audio_token", "boi", "x_token")
)


@pytest.mark.parametrize(
    "config",
    [
        {"extra_special_tokens": {"image_token": "<image>", "boi": "<boi>"}},
        {"extra_special_tokens": {"image_token": IMAGE, "eos_token": "<|im_end|>"}},
        {"additional_special_tokens": {"image_token": "<image>"}},
        {"additional_special_tokens": {"boi": "<boi>"}, "extra_special_tokens": {"audio_token": "<audio>"}},
        {"additional_special_tokens": {"boi": "<boi>"}, "extra_special_tokens": {}},
        {"additional_special_tokens": {"boi": "<boi>"}, "extra_special_tokens": ["<image>"]},
        {"additional_special_tokens": {"image_token": "<boi>"}, "image_token": "<image>"},
        {
            "additional_special_tokens": {"image_token": "<boi>", "boi": "<boi>"},
            "extra_special_tokens": {"boi": "<other>"},
            "image_token": "<image>",
        },
        {"extra_special_tokens": ["<image>", "<boi>"]},
        {"image_token": "<image>", "audio_token": IMAGE, "x_token": False, "boi": "<boi>"},
        {"image_token": "<other>", "extra_special_tokens": {"image_token": "<image>"}},
    ],
    ids=str,
)
def test_a_models_own_names_of_tokens(tmp_path, config):
    make_folder(tmp_path, {**PLAIN, **config}, template=SHOW_NAMES)
    ours, theirs = Tokenizer.from_file(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "Hi"}]
    assert ours.render_chat(messages) == theirs.apply_chat_template(messages, tokenize=False)
    assert ours.special_tokens == theirs.special_tokens_map
    # The ids of tokens that the vocabulary lacks are dealt out by either in its own order.
    text = "a<image>b<boi> </s><audio>c<other>"
    pieces = [ours.id_to_token(token_id) for token_id in ours.encode(text)]
    assert pieces == theirs.convert_ids_to_tokens(theirs.encode(text))


def test_truncation_and_padding_of_the_file_are_not_applied(tmp_path):
    reference = byte_level_bpe()
    reference.enable_truncation(3)
    reference.enable_padding(length=64)
    reference.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(tmp_path / "tokenizer.json")
    assert tokenizer.decode(tokenizer.encode("The quick brown fox")) == "The quick brown fox"
    assert len(tokenizer.encode("a")) == 1


def test_the_special_tokens_map_fills_in(tmp_path):
    make_folder(
        tmp_path, {"eos_token": "<|im_end|>"}, special_tokens_map={**PLAIN, "pad_token": {"content": "<s>"}}
    )
    tokenizer = Tokenizer.from_file(tmp_path)
    names = {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>", "pad_token": "<s>"}
    assert tokenizer.special_tokens == names
    assert tokenizer.eos_token_ids == {tokenizer.token_to_id("<|im_end|>")}


def test_where_the_chat_template_comes_from(tmp_path):
    make_folder(tmp_path, {**PLAIN, "chat_template": "from the configuration"})
    assert Tokenizer.from_file(tmp_path).chat_template == "from the configuration"
    (tmp_path / "chat_template.jinja").write_text("from the file ž", encoding="utf-8")
    assert Tokenizer.from_file(tmp_path).chat_template == "from the file ž"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    message = {"role": "user", "content": "Hi"}
    assert Tokenizer.from_file(tmp_path).render_chat([message], tools=[{}]) == "with tools"


def test_no_path(tmp_path):
    with pytest.raises(TokenizerFileError, match="no such file"):
        Tokenizer.from_file(tmp_path / "missing")
    with pytest.raises(TokenizerFileError, match=r"no tokenizer\.json"):
        Tokenizer.from_file(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b"", "tokenizer.json"),
        ("tokenizer.json", b"{", "tokenizer.json"),
        ("tokenizer.json", b"[]", "tokenizer.json"),
        ("tokenizer.json", b"\xff\xfe", "tokenizer.json"),
        ("tokenizer.json", b'{"model": {"type": "Martian"}}', "tokenizer.json"),
        ("tokenizer_config.json", b"{", "not valid JSON"),
        ("tokenizer_config.json", b"[1]", "JSON object"),
        ("tokenizer_config.json", b'{"bos_token": 5}', "bos_token"),
        ("tokenizer_config.json", b'{"extra_special_tokens": {"image_token": 5}}', "image_token"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {}}}', "added_tokens_decoder"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"5": {}}}', "added token 5"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"9": {"content": "<new>"}}}', "<new>"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "chat_template"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "a"}]}', "chat_template"),
        ("special_tokens_map.json", b"\xff", "special_tokens_map.json is not valid JSON"),
        ("chat_template.jinja", b"\xff\xfe", "chat_template.jinja is not UTF-8"),
    ],
)
def test_broken_files(tmp_path, name, content, message):
    make_folder(tmp_path, PLAIN)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokenizerFileError, match=message):
        Tokenizer.from_file(tmp_path)


def test_a_truncated_tokenizer_json(tmp_path):
    make_folder(tmp_path, PLAIN)
    data = (tmp_path / "tokenizer.json").read_bytes()
    for size in range(0, len(data), len(data) // 40):
        (tmp_path / "tokenizer.json").write_bytes(data[:size])
        with pytest.raises(TokenizerFileError, match=r"tokenizer\.json"):
            Tokenizer.from_file(tmp_path)
