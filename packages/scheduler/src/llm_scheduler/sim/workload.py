"""What is asked of the simulated engine, and when; knows nothing of schedulers, caches or time models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from llm_scheduler.plan import Bool, Int32, Int64
from llm_scheduler.sim.errors import InvalidWorkload
from llm_scheduler.sim.token_streams import MAX_CONTENT, STOP_TOKEN, Content, first_id, token_ids

Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """One request of a workload, as a trace line or a program states it.

    The prompt is either ``token_ids``, or ``shared`` contents followed by tokens of its own.

    Attributes:
        prompt_tokens: Length of the prompt; where it continues a conversation, of what is new in it.
        output_tokens: Tokens it generates.
        arrival_s: When it arrives; where ``after`` is set, seconds after the end of that request.
        token_ids: The prompt itself, or None.
        shared: (name, tokens) of each content the prompt begins with; equal names are equal tokens.
        max_tokens: The declared limit that the scheduler sees; None for ``output_tokens``. Where it is above,
            the request ends by a stop token.
        tenant: Whose request it is.
        priority: Lower is more urgent.
        deadline_s: Seconds after its arrival by which it should end, or None.
        after: Index of the request whose end starts this one, or None.
        continues: Whether the prompt begins with the prompt and the output of ``after``.
        salt: Requests of different salts share no blocks.
    """

    prompt_tokens: int
    output_tokens: int
    arrival_s: float = 0.0
    token_ids: Int32 | None = None
    shared: tuple[tuple[str, int], ...] = ()
    max_tokens: int | None = None
    tenant: str = ""
    priority: int = 0
    deadline_s: float | None = None
    after: int | None = None
    continues: bool = False
    salt: str | None = None

    def __post_init__(self) -> None:
        InvalidWorkload.require("prompt_tokens", self.prompt_tokens >= 1, "expected at least 1")
        InvalidWorkload.require("output_tokens", self.output_tokens >= 1, "expected at least 1")
        InvalidWorkload.require(
            "arrival_s", 0 <= self.arrival_s < np.inf, "expected a finite number, at least 0"
        )
        if self.token_ids is not None:
            InvalidWorkload.require(
                "token_ids", len(self.token_ids) == self.prompt_tokens, "expected prompt_tokens ids"
            )
            InvalidWorkload.require(
                "token_ids", not self.shared, "expected token ids or shared contents, not both"
            )
        InvalidWorkload.require(
            "shared", all(tokens >= 1 for _, tokens in self.shared), "expected at least 1 token each"
        )
        num_shared = sum(tokens for _, tokens in self.shared)
        InvalidWorkload.require("shared", num_shared <= self.prompt_tokens, "longer than the prompt")
        if self.max_tokens is not None:
            InvalidWorkload.require(
                "max_tokens", self.max_tokens >= self.output_tokens, "below output_tokens"
            )
        if self.deadline_s is not None:
            InvalidWorkload.require(
                "deadline_s", 0 < self.deadline_s < np.inf, "expected a positive finite number"
            )
        InvalidWorkload.require(
            "continues", self.after is not None or not self.continues, "expected `after` with it"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Requests as columns of length N, in the order in which they were stated.

    Make one with ``Workload.from_specs``, ``read_trace`` or ``synthesize``.

    Attributes:
        arrival_s: float64[N], as in ``RequestSpec``.
        prompt_tokens: int64[N], the whole prompt, an earlier conversation included.
        own_tokens: int64[N], the part that is not the earlier conversation.
        output_tokens: int64[N].
        max_tokens: int64[N], declared limits.
        tenants: int32[N], index into ``tenant_names``.
        priorities: int64[N].
        deadline_s: float64[N], seconds after arrival, NaN where there is none.
        after: int64[N], or -1.
        continues: bool[N].
        tenant_names: Names of the tenants.
        shared: By request, (content number, tokens) of each shared content; requests without are left out.
        explicit: By request, its prompt ids; requests without are left out.
        salts: By request, its salt; requests without are left out.
        content_names: Name of each shared content.
        tenant_weights: Share of service each tenant is entitled to; 1 where left out.
    """

    arrival_s: Float64
    prompt_tokens: Int64
    own_tokens: Int64
    output_tokens: Int64
    max_tokens: Int64
    tenants: Int32
    priorities: Int64
    deadline_s: Float64
    after: Int64
    continues: Bool
    tenant_names: tuple[str, ...]
    shared: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    explicit: Mapping[int, Int32] = field(default_factory=dict)
    salts: Mapping[int, str] = field(default_factory=dict)
    content_names: tuple[str, ...] = ()
    tenant_weights: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_specs(
        cls, specs: list[RequestSpec], *, tenant_weights: Mapping[str, float] | None = None
    ) -> Workload:
        """Make a workload of single requests.

        Raises:
            InvalidWorkload: There is none, or ``after`` names no earlier request.
        """
        InvalidWorkload.require(
            "requests", 0 < len(specs) <= MAX_CONTENT, f"expected 1 to {MAX_CONTENT} of them"
        )
        for index, spec in enumerate(specs):
            if spec.after is not None and not 0 <= spec.after < index:
                raise InvalidWorkload(
                    "after", f"request {index} follows {spec.after}, which is not before it"
                )
        tenant_index = {name: i for i, name in enumerate(dict.fromkeys(spec.tenant for spec in specs))}
        names = dict.fromkeys(name for spec in specs for name, _ in spec.shared)
        content_index = {name: i for i, name in enumerate(names)}
        own = np.array([spec.prompt_tokens for spec in specs], np.int64)
        outputs = np.array([spec.output_tokens for spec in specs], np.int64)
        after = np.array([-1 if spec.after is None else spec.after for spec in specs], np.int64)
        continues = np.array([spec.continues for spec in specs], np.bool_)
        return cls(
            arrival_s=np.array([spec.arrival_s for spec in specs], np.float64),
            prompt_tokens=_whole_prompts(own, outputs, after, continues),
            own_tokens=own,
            output_tokens=outputs,
            max_tokens=np.array([spec.max_tokens or spec.output_tokens for spec in specs], np.int64),
            tenants=np.array([tenant_index[spec.tenant] for spec in specs], np.int32),
            priorities=np.array([spec.priority for spec in specs], np.int64),
            deadline_s=np.array(
                [np.nan if s.deadline_s is None else s.deadline_s for s in specs], np.float64
            ),
            after=after,
            continues=continues,
            tenant_names=tuple(tenant_index),
            shared={
                i: tuple((content_index[name], tokens) for name, tokens in spec.shared)
                for i, spec in enumerate(specs)
                if spec.shared
            },
            explicit={i: spec.token_ids for i, spec in enumerate(specs) if spec.token_ids is not None},
            salts={i: spec.salt for i, spec in enumerate(specs) if spec.salt is not None},
            content_names=tuple(content_index),
            tenant_weights=_checked_weights(tenant_weights or {}),
        )

    def __len__(self) -> int:
        return len(self.arrival_s)

    def spec(self, index: int) -> RequestSpec:
        """Return one request as it was stated."""
        declared, outputs = int(self.max_tokens[index]), int(self.output_tokens[index])
        deadline_s = float(self.deadline_s[index])
        shared = self.shared.get(index, ())
        return RequestSpec(
            prompt_tokens=int(self.own_tokens[index]),
            output_tokens=outputs,
            arrival_s=float(self.arrival_s[index]),
            token_ids=self.explicit.get(index),
            shared=tuple((self.content_names[number], tokens) for number, tokens in shared),
            max_tokens=None if declared == outputs else declared,
            tenant=self.tenant_names[self.tenants[index]],
            priority=int(self.priorities[index]),
            deadline_s=None if np.isnan(deadline_s) else deadline_s,
            after=None if self.after[index] < 0 else int(self.after[index]),
            continues=bool(self.continues[index]),
            salt=self.salts.get(index),
        )

    def prompt(self, index: int) -> Int32:
        """Return int32[prompt_tokens]: the ids of the prompt, the earlier conversation included."""
        parts = self._own_parts(index)
        while self.continues[index]:
            index = int(self.after[index])
            parts = [*self._own_parts(index), self.output(index), *parts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def output(self, index: int) -> Int32:
        """Return int32[output_tokens]: the ids the request generates."""
        ids = token_ids(first_id(Content.OUTPUT, index), int(self.output_tokens[index]))
        if self.max_tokens[index] > self.output_tokens[index]:
            ids[-1] = STOP_TOKEN
        return ids

    def _own_parts(self, index: int) -> list[Int32]:
        explicit = self.explicit.get(index)
        if explicit is not None:
            return [explicit]
        parts: list[Int32] = []
        left = int(self.own_tokens[index])
        for number, tokens in self.shared.get(index, ()):
            parts.append(token_ids(first_id(Content.SHARED, number), tokens))
            left -= tokens
        if left:
            parts.append(token_ids(first_id(Content.UNIQUE, index), left))
        return parts

    def scaled(self, rate: float) -> Workload:
        """Return the same requests arriving ``rate`` times as fast; pauses of users shrink likewise.

        Raises:
            InvalidWorkload: The rate is not a positive finite number.
        """
        InvalidWorkload.require("rate_scale", 0 < rate < np.inf, "expected a positive finite number")
        return replace(self, arrival_s=self.arrival_s / rate)

    def first(self, num_requests: int) -> Workload:
        """Return only the first requests, as stated.

        Raises:
            InvalidWorkload: The number is below 1.
        """
        InvalidWorkload.require("max_requests", num_requests >= 1, "expected at least 1")
        kept = [self.spec(index) for index in range(min(num_requests, len(self)))]
        return Workload.from_specs(kept, tenant_weights=self.tenant_weights)


def _checked_weights(weights: Mapping[str, float]) -> Mapping[str, float]:
    for name, weight in weights.items():
        InvalidWorkload.require(
            "tenant_weights", 0 < weight < np.inf, f"{name!r} has {weight}, expected a positive number"
        )
    return dict(weights)


def _whole_prompts(own: Int64, outputs: Int64, after: Int64, continues: Bool) -> Int64:
    """Return int64[N]: prompt lengths with the conversations before them."""
    whole = own.copy()
    for index in np.flatnonzero(continues).tolist():
        before = int(after[index])
        whole[index] += whole[before] + outputs[before]
    return whole
