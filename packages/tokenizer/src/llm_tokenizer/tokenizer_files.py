"""Owns the reading of tokenizer files into one `LoadedTokenizer`; knows nothing of encoding or rendering.

Sources: a `tokenizer.json`, a GGUF file, a bare vocabulary file, or a folder of Hugging Face files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_tokenizer._native import NativeTokenizer
from llm_tokenizer.errors import InvalidArgument, TokenizerFileError
from llm_tokenizer.tokenizer_formats import TiktokenFacts, find_bare_file, kind_of, load_bare

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA_TOKENS = ("additional_special_tokens", "extra_special_tokens")
_GGUF_EOS_ROLES = ("eos_token_id", "eot_token_id", "eom_token_id")

AddedToken = tuple[str, int | None, bool, bool, bool, bool, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTokenizer:
    """A tokenizer with what its files say around it.

    Attributes:
        native: Encodes and decodes.
        special_tokens: Text by name (`bos_token`, and a model's own as `image_token`), only the names that
            are set; what templates get.
        eos_ids: Every id that the files call an end of text or of turn.
        chat_templates: Jinja sources by name; the unnamed one is `default`.
    """

    native: NativeTokenizer
    special_tokens: Mapping[str, str]
    eos_ids: frozenset[int]
    chat_templates: Mapping[str, str] = field(default_factory=dict)


def load(path: Path, facts: TiktokenFacts) -> LoadedTokenizer:
    """Load the tokenizer at `path`, a file or a folder.

    Args:
        path: The file or folder.
        facts: What a tiktoken file does not say.

    Raises:
        TokenizerFileError: Nothing usable is there; the message says what and where.
        InvalidArgument: `facts` were given for a file of another kind.
    """
    if not path.exists():
        raise TokenizerFileError(f"no such file or folder: {path}")
    file = _file_of_folder(path) if path.is_dir() else path
    kind = kind_of(file)
    if facts.given and kind != "tiktoken":
        raise InvalidArgument(facts.given, f"is for tiktoken files, {file} is of the kind {kind}")
    if kind == "gguf":
        return _load_gguf(file)
    if kind != "json":
        return _load_bare(file, kind, facts)
    if not path.is_dir():
        return _load_json(file, {}, {})
    config = _read_config(path)
    return _load_json(file, config, _chat_templates(path, config))


def _file_of_folder(folder: Path) -> Path:
    path = folder / "tokenizer.json"
    if path.is_file():
        return path
    bare = find_bare_file(folder)
    if bare is not None:
        return bare
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return ggufs[0]
    raise TokenizerFileError(f"no tokenizer.json in {folder}, nor a vocabulary file of another kind")


def _read_config(folder: Path) -> dict[str, Any]:
    return {
        **_read_object(folder / "special_tokens_map.json"),
        **_read_object(folder / "tokenizer_config.json"),
    }


def _load_gguf(path: Path) -> LoadedTokenizer:
    native, facts = NativeTokenizer.from_gguf(path)
    texts = {name: native.id_to_token(facts[f"{name}_id"]) for name in _NAMED_TOKENS if f"{name}_id" in facts}
    return LoadedTokenizer(
        native=native,
        special_tokens={name: text for name, text in texts.items() if text is not None},
        eos_ids=frozenset(facts[role] for role in _GGUF_EOS_ROLES if role in facts),
        chat_templates=dict(facts["chat_templates"]),
    )


def _load_bare(path: Path, kind: str, facts: TiktokenFacts) -> LoadedTokenizer:
    config = _read_config(path.parent)
    native, found = load_bare(path, kind, facts, config)
    own = {name: found[name] for name in _NAMED_TOKENS if name in found}
    special_tokens = own | _special_tokens(config, path.parent)
    eos = native.token_to_id(special_tokens["eos_token"]) if "eos_token" in special_tokens else None
    return LoadedTokenizer(
        native=native,
        special_tokens=special_tokens,
        eos_ids=frozenset(found["eos_token_ids"]) | (frozenset() if eos is None else {eos}),
        chat_templates=_chat_templates(path.parent, config),
    )


def _load_json(path: Path, config: Mapping[str, Any], templates: Mapping[str, str]) -> LoadedTokenizer:
    special_tokens = _special_tokens(config, path.parent)
    # add_bos_token and add_eos_token are not read: the post-processor decides, as in transformers.
    added = _added_tokens(config, special_tokens, path.parent)
    try:
        native = NativeTokenizer.from_json(_read_bytes(path), added)
    except TokenizerFileError as error:
        raise TokenizerFileError(f"{path}: {error}") from error
    eos = native.token_to_id(special_tokens["eos_token"]) if "eos_token" in special_tokens else None
    return LoadedTokenizer(
        native=native,
        special_tokens=special_tokens,
        eos_ids=frozenset() if eos is None else frozenset({eos}),
        chat_templates=templates,
    )


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TokenizerFileError(f"cannot read {path}: {error.strerror}") from error


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read_bytes(path))
    except ValueError as error:
        raise TokenizerFileError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerFileError(f"{path} does not hold a JSON object")
    return content


def _token_text(value: object, name: str, folder: Path) -> str | None:
    """A token that configuration files write as a string or as an object with its `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    if value is None or isinstance(value, str):
        return value
    raise TokenizerFileError(f"{name} in {folder} is neither a string nor an object with a content")


def _special_tokens(config: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Texts by name: the usual names, and a model's own ones, as `image_token`.

    Own names are `*_token` keys whose value is a token, and the keys of objects of extra tokens. What goes
    before what is as in transformers.
    """
    named = {name: config.get(name) for name in _NAMED_TOKENS}
    own = {key: value for key, value in config.items() if key.endswith("_token") and _is_token(value)}
    older, extra = _extra_tokens(config)
    values = {**named, **_by_name(older), **own, **_by_name(extra)}
    texts = {name: _token_text(value, name, folder) for name, value in values.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _extra_tokens(config: Mapping[str, Any]) -> tuple[object, object]:
    """The additional and the extra special tokens; a list of extra ones stands for both."""
    older, extra = (config.get(name) for name in _EXTRA_TOKENS)
    if not extra:
        return None, older
    return (None if isinstance(extra, list) else older), extra


def _by_name(tokens: object) -> dict[str, object]:
    return tokens if isinstance(tokens, dict) else {}


def _is_token(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("content"), str))


def _added_tokens(config: Mapping[str, Any], special: Mapping[str, str], folder: Path) -> list[AddedToken]:
    """Tokens that the vocabulary must hold: those listed by id, then the special ones by name."""
    decoder = config.get("added_tokens_decoder", {})
    if not isinstance(decoder, dict) or not all(key.isdigit() for key in decoder):
        raise TokenizerFileError(f"added_tokens_decoder in {folder} is not an object keyed by token id")
    added = [
        _added_token(value, int(key), folder)
        for key, value in sorted(decoder.items(), key=lambda x: int(x[0]))
    ]
    listed = {token[0] for token in added}
    extra = [value for tokens in _extra_tokens(config) if isinstance(tokens, list) for value in tokens]
    texts = [*special.values(), *(_token_text(value, "an extra special token", folder) for value in extra)]
    missing = [text for text in dict.fromkeys(texts) if text is not None and text not in listed]
    return added + [(text, None, False, False, False, False, True) for text in missing]


def _added_token(value: object, token_id: int, folder: Path) -> AddedToken:
    text = _token_text(value, f"added token {token_id}", folder)
    if text is None or not isinstance(value, dict):
        raise TokenizerFileError(f"the added token {token_id} in {folder} has no content")
    flags = [
        bool(value.get(name, False)) for name in ("single_word", "lstrip", "rstrip", "normalized", "special")
    ]
    return (text, token_id, *flags)  # type: ignore[return-value]  # five flags, by construction


def _chat_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name. A `chat_template.jinja` is the default, whatever the configuration says."""
    templates: dict[str, str] = {}
    listed = config.get("chat_template")
    if isinstance(listed, str):
        templates["default"] = listed
    elif isinstance(listed, list):
        for entry in listed:
            if not isinstance(entry, dict) or not all(
                isinstance(entry.get(key), str) for key in ("name", "template")
            ):
                raise TokenizerFileError(f"chat_template in {folder} has an entry without name and template")
            templates[entry["name"]] = entry["template"]
    elif listed is not None:
        raise TokenizerFileError(f"chat_template in {folder} is neither a string nor a list")
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    for name, path in files.items():
        if path.is_file():
            templates[name] = _read_text(path)
    return templates


def _read_text(path: Path) -> str:
    try:
        return _read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise TokenizerFileError(f"{path} is not UTF-8") from error
