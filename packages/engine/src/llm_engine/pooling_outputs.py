"""Owns what `LLM.embed`, `score`, `classify` and `reward` return; knows nothing of how it is made."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EmbeddingOutput:
    """The vector of a text.

    Attributes:
        embedding: float32 [dimensions], or [tokens, dimensions] where one of each token was asked for.
        num_prompt_tokens: Tokens of the text, special ones included.
    """

    embedding: NDArray[np.float32]
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOutput:
    """How well a text goes with a query.

    Attributes:
        score: Of a cross-encoder, what its head says (0 to 1 unless its config asks for raw scores); of an
            embedder, the cosine of the two vectors.
        num_prompt_tokens: Tokens of both, special ones included.
    """

    score: float
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassificationOutput:
    """The classes of a text, or of each of its tokens.

    Attributes:
        labels: Names of the classes.
        probabilities: float32 [labels], or [tokens, labels] where the model classifies tokens.
        num_prompt_tokens: Tokens of the text, special ones included.
    """

    labels: tuple[str, ...]
    probabilities: NDArray[np.float32]
    num_prompt_tokens: int

    @property
    def label(self) -> str:
        """The likeliest class of the text.

        Raises:
            ValueError: The model classifies tokens: see `token_labels`.
        """
        if self.probabilities.ndim != 1:
            raise ValueError("there is a class for each token: read token_labels")
        return self.labels[int(self.probabilities.argmax())]

    @property
    def token_labels(self) -> tuple[str, ...]:
        """The likeliest class of each token.

        Raises:
            ValueError: The model classifies whole texts: see `label`.
        """
        if self.probabilities.ndim != 2:
            raise ValueError("there is one class for the text: read label")
        return tuple(self.labels[index] for index in self.probabilities.argmax(axis=1).tolist())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RewardOutput:
    """What a reward model says of a text.

    Attributes:
        rewards: Raw scores, float32 [labels] for the text or [tokens, labels] for each token.
        num_prompt_tokens: Tokens of the text, special ones included.
    """

    rewards: NDArray[np.float32]
    num_prompt_tokens: int

    @property
    def reward(self) -> float:
        """The one score of the text.

        Raises:
            ValueError: There are several: read `rewards`.
        """
        if self.rewards.size != 1:
            raise ValueError(f"there are rewards of shape {self.rewards.shape}: read rewards")
        return float(self.rewards.flat[0])
