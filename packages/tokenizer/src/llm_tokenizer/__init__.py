"""Fast encode, batched incremental detokenize, stop strings and chat templates, without torch."""

from importlib.metadata import version

from llm_tokenizer.detokenizer import Detokenizer, StepText
from llm_tokenizer.errors import InvalidArgument, TemplateError, TokenizerError, TokenizerFileError
from llm_tokenizer.pair_template import PairTemplate
from llm_tokenizer.tokenizer import Tokenizer

__version__ = version("llm-stack-tokenizer")

__all__ = [
    "Detokenizer",
    "InvalidArgument",
    "PairTemplate",
    "StepText",
    "TemplateError",
    "Tokenizer",
    "TokenizerError",
    "TokenizerFileError",
    "__version__",
]
