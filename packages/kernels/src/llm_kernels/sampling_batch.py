"""What sampling takes and gives, row by row; knows nothing of how tokens are drawn."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Penalties of P rows, with what these rows already hold.

    Attributes:
        presence: float32[P], subtracted once from tokens in the output.
        frequency: float32[P], subtracted for each occurrence in the output.
        repetition: float32[P], divides positive and multiplies negative logits of tokens in prompt or output.
        output_counts: int32[P, V], occurrences in the output.
        prompt_mask: bool[P, V], whether the token is in the prompt.
        rows: int64[P], the rows of the logits concerned, each once; None: all rows in order (P == R).
    """

    presence: Tensor
    frequency: Tensor
    repetition: Tensor
    output_counts: Tensor
    prompt_mask: Tensor
    rows: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """How to choose the tokens of R rows; tensors on the logits' device, flags on the host.

    The flags let work be skipped without asking the device, and `filtered_rows` confines the work of top-k,
    top-p and min-p to the rows that use them. A flag that is set wrongly (off although a row uses the filter)
    disables the filter.

    Attributes:
        temperature: float32[R], at least 0; 0 is greedy.
        top_p: float32[R] in (0, 1]; 1 keeps all.
        min_p: float32[R] in [0, 1]; 0 keeps all.
        top_k: int32[R]; 0 keeps all.
        seeds: int64[R], the row's random stream.
        positions: int64[R], index of the drawn token in its sequence: the counter of the stream.
        all_greedy: Every temperature is 0.
        max_top_k: Largest top_k of the batch; 0: no row uses top-k.
        any_top_p: Some top_p is below 1.
        any_min_p: Some min_p is above 0.
        every_top_p_has_top_k: Each row with top_p below 1 has a top_k as well, so no row needs a full sort.
        filtered_rows: int64[F], the rows with any of top-k, top-p, min-p; None: all rows may have.
        penalties: None where no row has penalties.
        logit_bias: (row int64[M], token int64[M], value float32[M]), each pair once; None: no bias.
        banned: (row int64[M], token int64[M]), tokens that cannot be drawn; None: none.
        num_logprobs: Number of most likely tokens to report (0: the sampled one only); None: no logprobs.
    """

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    seeds: Tensor
    positions: Tensor
    all_greedy: bool = False
    max_top_k: int = 0
    any_top_p: bool = False
    any_min_p: bool = False
    every_top_p_has_top_k: bool = False
    filtered_rows: Tensor | None = None
    penalties: Penalties | None = None
    logit_bias: tuple[Tensor, Tensor, Tensor] | None = None
    banned: tuple[Tensor, Tensor] | None = None
    num_logprobs: int | None = None

    @property
    def changes_logits(self) -> bool:
        """Whether any step before the draw writes to the logits."""
        return (
            self.penalties is not None
            or self.logit_bias is not None
            or self.banned is not None
            or self.uses_filters
        )

    @property
    def uses_filters(self) -> bool:
        """Whether any row that is not greedy may use top-k, top-p or min-p."""
        return not self.all_greedy and (self.max_top_k > 0 or self.any_top_p or self.any_min_p)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRanks:
    """Where given tokens stand in the raw distribution of their rows.

    Attributes:
        logprobs: float32[R], log probability of the token.
        ranks: int64[R], 1 for the likeliest; tokens of equal logit share the best rank.
        top_ids: int64[R, k], likeliest tokens, best first.
        top_logprobs: float32[R, k].
    """

    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOutput:
    """The tokens chosen for R rows.

    Attributes:
        tokens: int64[R].
        faults: bool[R]; True where the row holds NaN or +inf, or nothing but -inf: its token means nothing.
        ranks_of_tokens: Logprobs of the raw distribution; None where `num_logprobs` was None.
    """

    tokens: Tensor
    faults: Tensor
    ranks_of_tokens: TokenRanks | None = None

    @property
    def logprobs(self) -> Tensor | None:
        """float32[R], raw log probability of the sampled token."""
        return None if self.ranks_of_tokens is None else self.ranks_of_tokens.logprobs

    @property
    def ranks(self) -> Tensor | None:
        """int64[R], rank of the sampled token in the raw distribution."""
        return None if self.ranks_of_tokens is None else self.ranks_of_tokens.ranks

    @property
    def top_ids(self) -> Tensor | None:
        """int64[R, k], likeliest tokens."""
        return None if self.ranks_of_tokens is None else self.ranks_of_tokens.top_ids

    @property
    def top_logprobs(self) -> Tensor | None:
        """float32[R, k], log probabilities of `top_ids`."""
        return None if self.ranks_of_tokens is None else self.ranks_of_tokens.top_logprobs
