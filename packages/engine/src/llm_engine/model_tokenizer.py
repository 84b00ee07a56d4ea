"""Owns finding a model's tokenizer without loading the model; knows nothing of engines."""

from llm_models.files import resolve
from llm_tokenizer import Tokenizer


def tokenizer_of(model: str, *, offline: bool = False, allow_pickle: bool = False) -> Tokenizer:
    """The tokenizer that an engine would take for ``model``.

    Raises:
        llm_models.errors.ModelError: There is no such model, or its config cannot be read.
        llm_tokenizer.TokenizerFileError: It has no tokenizer, or one that cannot be read.
    """
    files = resolve(model, offline=offline, allow_pickle=allow_pickle)
    return Tokenizer.from_file(files.tokenizer_path)
