"""Owns embedding, scoring, classifying and rewarding of many texts: checks, batches, outputs.

Knows nothing of how the model is reached: it gets a function that runs one pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

import msgspec
import numpy as np
from llm_tokenizer import PairTemplate, Tokenizer
from numpy.typing import NDArray
from tqdm import tqdm

from llm_engine.errors import InvalidRequest, UnsupportedTask
from llm_engine.options import EngineOptions
from llm_engine.pooling_inputs import EncodedText, TextEncoder
from llm_engine.pooling_outputs import ClassificationOutput, EmbeddingOutput, RewardOutput, ScoreOutput
from llm_engine.prompts import Prompt, TokensPrompt
from llm_engine.worker.pooling_info import PoolingInfo

if TYPE_CHECKING:  # a front end in a process of its own runs without torch
    from llm_models import ModelFiles

Floats: TypeAlias = NDArray[np.float32]
ScoreActivation: TypeAlias = Literal["softmax", "sigmoid", "identity"]
_CUDA_BATCHED_TOKENS = 8192
_CPU_BATCHED_TOKENS = 2048
"""Of a pass, where the options do not say; a longer text then has a pass of its own. On a CPU more tokens
bring nothing, and others wait the longer."""


class RunPass(Protocol):
    """Runs whole texts in one pass; see `PoolingModel.run`."""

    def __call__(
        self,
        texts: list[list[int]],
        token_types: list[list[int]] | None,
        normalize: bool | None,
        per_token: bool,
    ) -> list[Floats]:
        """The result of each text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooler:
    """Answers for many texts, pass after pass.

    Attributes:
        info: What the model is like.
        encoder: From texts to tokens.
        run: Runs a pass.
        activation: From raw scores to probabilities.
        max_batched_tokens: Of a pass; a text that is longer has one of its own.
        max_texts: In a pass.
    """

    info: PoolingInfo
    encoder: TextEncoder
    run: RunPass
    activation: ScoreActivation
    max_batched_tokens: int
    max_texts: int

    def embed(
        self,
        texts: Sequence[Prompt],
        *,
        dimensions: int | None,
        normalize: bool | None,
        truncate: int | None,
        per_token: bool,
        progress: bool,
    ) -> list[EmbeddingOutput]:
        """See `LLM.embed`."""
        if self.info.labels:
            raise UnsupportedTask("embed", self._offers())
        if dimensions is not None and (
            isinstance(dimensions, bool)
            or not isinstance(dimensions, int)
            or not 0 < dimensions <= self.info.size
        ):
            raise InvalidRequest("dimensions", f"must be from 1 to {self.info.size}, got {dimensions!r}")
        if normalize is not None and not isinstance(normalize, bool):
            raise InvalidRequest("normalize", f"must be true, false or None, got {normalize!r}")
        encoded = self._encoded(texts, "texts", truncate)
        vectors = self._answers(encoded, normalize, progress, per_token=per_token)
        if dimensions is not None and dimensions < self.info.size:
            vectors = [self._shortened(vector, dimensions, normalize) for vector in vectors]
        return [
            EmbeddingOutput(embedding=vector, num_prompt_tokens=len(text.token_ids))
            for vector, text in zip(vectors, encoded, strict=True)
        ]

    def score(
        self, pairs: Sequence[tuple[Prompt, Prompt]], *, truncate: int | None, progress: bool
    ) -> list[ScoreOutput]:
        """See `LLM.score`."""
        if not self.info.labels:
            return self._cosines(pairs, truncate, progress)
        if self.info.per_token or len(self.info.labels) != 1:
            raise UnsupportedTask("score", self._offers())
        names = zip(_names("query", len(pairs)), _names("texts", len(pairs)), strict=True)
        encoded = [
            self.encoder.pair(*pair, fields, truncate) for pair, fields in zip(pairs, names, strict=True)
        ]
        return [
            ScoreOutput(score=float(self._probabilities(raw)[0]), num_prompt_tokens=len(text.token_ids))
            for raw, text in zip(self._answers(encoded, None, progress), encoded, strict=True)
        ]

    def classify(
        self, texts: Sequence[Prompt], *, truncate: int | None, progress: bool
    ) -> list[ClassificationOutput]:
        """See `LLM.classify`."""
        if not self.info.labels:
            raise UnsupportedTask("classify", self._offers())
        encoded = self._encoded(texts, "texts", truncate)
        return [
            ClassificationOutput(
                labels=self.info.labels,
                probabilities=self._probabilities(raw),
                num_prompt_tokens=len(text.token_ids),
            )
            for raw, text in zip(self._answers(encoded, None, progress), encoded, strict=True)
        ]

    def reward(self, texts: Sequence[Prompt], *, truncate: int | None, progress: bool) -> list[RewardOutput]:
        """See `LLM.reward`."""
        if not self.info.labels:
            raise UnsupportedTask("reward", self._offers())
        encoded = self._encoded(texts, "texts", truncate)
        return [
            RewardOutput(rewards=raw, num_prompt_tokens=len(text.token_ids))
            for raw, text in zip(self._answers(encoded, None, progress), encoded, strict=True)
        ]

    def _cosines(
        self, pairs: Sequence[tuple[Prompt, Prompt]], truncate: int | None, progress: bool
    ) -> list[ScoreOutput]:
        queries = self._encoded([query for query, _ in pairs], "query", truncate)
        texts = self._encoded([text for _, text in pairs], "texts", truncate)
        # A query is mostly the same for many texts: it is run once.
        distinct = {tuple(one.token_ids): one for one in (*queries, *texts)}
        vectors = dict(zip(distinct, self._answers(list(distinct.values()), True, progress), strict=True))
        return [
            ScoreOutput(
                score=float(vectors[tuple(query.token_ids)] @ vectors[tuple(text.token_ids)]),
                num_prompt_tokens=len(query.token_ids) + len(text.token_ids),
            )
            for query, text in zip(queries, texts, strict=True)
        ]

    def _encoded(self, texts: Sequence[Prompt], field: str, truncate: int | None) -> list[EncodedText]:
        names = _names(field, len(texts))
        return [self.encoder.one(text, name, truncate) for text, name in zip(texts, names, strict=True)]

    def _answers(
        self,
        encoded: Sequence[EncodedText],
        normalize: bool | None,
        progress: bool,
        *,
        per_token: bool = False,
    ) -> list[Floats]:
        """The result of each text, in their order."""
        answers: dict[int, Floats] = {}
        with tqdm(total=len(encoded), desc="Texts", unit="text", disable=not progress) as bar:
            for batch in self._batches(encoded):
                texts = [encoded[index] for index in batch]
                results = self.run(
                    [text.token_ids for text in texts],
                    [text.token_types or [0] * len(text.token_ids) for text in texts]
                    if any(text.token_types for text in texts)
                    else None,
                    normalize,
                    per_token,
                )
                answers.update(zip(batch, results, strict=True))
                bar.update(len(batch))
        return [answers[index] for index in range(len(encoded))]

    def _batches(self, encoded: Sequence[EncodedText]) -> Iterator[list[int]]:
        """Indices of texts, the longest first: texts of a pass are then of like length."""
        lengths = [len(text.token_ids) for text in encoded]
        batch: list[int] = []
        total = 0
        for index in sorted(range(len(encoded)), key=lambda index: -lengths[index]):
            if batch and (total + lengths[index] > self.max_batched_tokens or len(batch) == self.max_texts):
                yield batch
                batch, total = [], 0
            batch.append(index)
            total += lengths[index]
        if batch:
            yield batch

    def _shortened(self, vector: Floats, dimensions: int, normalize: bool | None) -> Floats:
        """The first numbers of a vector or of each of several, of length 1 if the whole one is."""
        part = vector[..., :dimensions]
        if not (self.info.normalize if normalize is None else normalize):
            return part
        lengths = np.linalg.norm(part, axis=-1, keepdims=True)
        return cast("Floats", part / np.maximum(lengths, np.float32(1e-12)))

    def _probabilities(self, raw: Floats) -> Floats:
        if self.activation == "identity":
            return raw
        if self.activation == "sigmoid":
            return cast("Floats", (0.5 * (1 + np.tanh(0.5 * raw))).astype(np.float32))
        powers = np.exp(raw - raw.max(axis=-1, keepdims=True))
        return cast("Floats", (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32))

    def _offers(self) -> str:
        """What can be called instead."""
        if not self.info.labels:
            return "it gives vectors: call embed, or score for their cosines"
        if self.info.per_token:
            return "it gives scores of each token: call classify or reward"
        if len(self.info.labels) == 1:
            return "it gives one score of a text or a pair: call score, classify or reward"
        return f"it gives scores for {len(self.info.labels)} classes: call classify or reward"


def _names(field: str, count: int) -> list[str]:
    """How errors name each of `count` texts."""
    return [field] if count == 1 else [f"{field}[{index}]" for index in range(count)]


def score_activation(config: Mapping[str, Any], num_labels: int) -> ScoreActivation:
    """How raw scores become probabilities: as the config says, else softmax over several classes.

    Raises:
        UnsupportedTask: The config names something else.
    """
    section = config.get("sentence_transformers")
    named = section.get("activation_fn") if isinstance(section, Mapping) else None
    named = named or config.get("sbert_ce_default_activation_function")
    if named is not None:
        known: Mapping[str, ScoreActivation] = {
            "Identity": "identity",
            "Sigmoid": "sigmoid",
            "Softmax": "softmax",
        }
        kind = str(named).rpartition(".")[2]
        if kind not in known:
            raise UnsupportedTask("score", f"its config asks for {named!r}, which is not done here")
        return known[kind]
    match config.get("problem_type"):
        case "multi_label_classification":
            return "sigmoid"
        case "regression":
            return "identity"
    return "sigmoid" if num_labels == 1 else "softmax"


class PoolingPort(Protocol):
    """Where a loaded model is."""

    def call(self, method: str, *args: Any) -> Any:  # noqa: ANN401 - any method of the worker
        """Call a method of the worker."""
        ...


def make_pooler(
    client: PoolingPort, tokenizer: Tokenizer | None, options: EngineOptions, files: "ModelFiles"
) -> Pooler:
    """The pooler of a loaded model.

    Raises:
        RequestFailed: The model generates text and cannot be run as an embedder.
    """
    known: PoolingInfo | None = getattr(client, "pooling_info", None)
    info = known or msgspec.convert(client.call("pooling_info"), PoolingInfo, from_attributes=True)

    def run(
        texts: list[list[int]],
        token_types: list[list[int]] | None,
        normalize: bool | None,
        per_token: bool,
    ) -> list[Floats]:
        found: list[Floats] = client.call("pool", texts, token_types, normalize, per_token)
        return found

    path = None if tokenizer is None else files.tokenizer_path
    return build_pooler(
        info, tokenizer, path, options, run, activation=score_activation(files.config, len(info.labels))
    )


def build_pooler(
    info: PoolingInfo,
    tokenizer: Tokenizer | None,
    tokenizer_path: Path | None,
    options: EngineOptions,
    run: RunPass,
    *,
    activation: ScoreActivation,
) -> Pooler:
    """The pooler of a model that `info` describes and `run` runs.

    Args:
        info: What the model is like.
        tokenizer: None: the model takes token ids only.
        tokenizer_path: Its file, which tells how pairs are joined; None: there is none.
        options: Give the limits of a pass.
        run: Runs a pass.
        activation: From raw scores to probabilities.
    """
    stated = options.max_num_batched_tokens
    encoder = TextEncoder(
        tokenizer=tokenizer,
        pairs=PairTemplate() if tokenizer_path is None else PairTemplate.from_file(tokenizer_path),
        max_tokens=info.max_tokens if stated is None else min(info.max_tokens, stated),
        vocab_size=info.vocab_size,
        num_token_types=info.num_token_types,
    )
    return Pooler(
        info=info,
        encoder=encoder,
        run=run,
        activation=activation,
        max_batched_tokens=pass_tokens(options, info),
        max_texts=options.max_num_seqs,
    )


def pass_tokens(options: EngineOptions, info: PoolingInfo) -> int:
    """Tokens of a pass."""
    on_cuda = info.device.startswith("cuda")
    return options.max_num_batched_tokens or (_CUDA_BATCHED_TOKENS if on_cuda else _CPU_BATCHED_TOKENS)


def as_texts(texts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """A list of texts, whether one or several were given.

    Raises:
        InvalidRequest: Something else; `texts` is named.
    """
    if isinstance(texts, str | TokensPrompt | np.ndarray):
        return [cast("Prompt", texts)]
    if not isinstance(texts, Sequence) or isinstance(texts, bytes):
        raise InvalidRequest(
            "texts", f"must be text, token ids or a list of these, got {type(texts).__name__}"
        )
    if not texts:
        raise InvalidRequest("texts", "must not be empty")
    if isinstance(texts[0], int | np.integer):
        return [cast("Prompt", texts)]
    return cast("Sequence[Prompt]", texts)


def as_pairs(
    query: Prompt | Sequence[Prompt] | Sequence[tuple[Prompt, Prompt]],
    texts: Prompt | Sequence[Prompt] | None,
) -> list[tuple[Prompt, Prompt]]:
    """Pairs of a query and a text: one query for all texts, one for each, or pairs as they are.

    Raises:
        InvalidRequest: They do not go together; `query` or `texts` is named.
    """
    if texts is None:
        if not isinstance(query, Sequence) or isinstance(query, str | bytes) or not query:
            raise InvalidRequest("query", "must be a list of pairs where no texts are given")
        for pair in query:
            if not isinstance(pair, tuple | list) or len(pair) != 2 or isinstance(pair[0], int):
                raise InvalidRequest("query", f"must hold pairs (query, text), got {str(pair)[:60]}")
        return [(pair[0], pair[1]) for pair in cast("Sequence[tuple[Prompt, Prompt]]", query)]
    many = as_texts(texts)
    queries = as_texts(cast("Prompt | Sequence[Prompt]", query))
    if len(queries) == 1:
        queries = [queries[0]] * len(many)
    if len(queries) != len(many):
        raise InvalidRequest("texts", f"there are {len(many)} for {len(queries)} queries")
    return list(zip(queries, many, strict=True))
