"""What is asked of an engine: prompts and output lengths drawn from a seed; knows nothing of engines.

W1 to W6 are the workloads of docs/performance.md. They draw the same numbers in the same order as the script
that measured the peers.
"""

import random
from dataclasses import dataclass, field

from llm_stack_server.errors import ServerError

_LOWEST_ID = 100


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths drawn evenly from `low` to `high` tokens, both included.

    Raises:
        ServerError: Not 1 <= low <= high.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ServerError(f"lengths: must be from 1 up, as N or LOW:HIGH, got {self.low}:{self.high}")

    @classmethod
    def parse(cls, text: str) -> "Lengths":
        """From "N" or "LOW:HIGH".

        Raises:
            ValueError: It is neither.
        """
        low, _, high = text.partition(":")
        return cls(int(low), int(high or low))

    def draw(self, numbers: random.Random) -> int:
        """One length."""
        return numbers.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A batch of requests: one list of prompt ids and one output length each."""

    name: str
    title: str
    prompts: list[list[int]] = field(repr=False)
    output_lengths: list[int] = field(repr=False)
    rounds: int = 2
    fresh_prompts: bool = True  # new prompts in each round, so that the prefix cache does not answer them

    @property
    def num_input_tokens(self) -> int:
        """Prompt tokens over all requests."""
        return sum(map(len, self.prompts))

    @property
    def num_output_tokens(self) -> int:
        """Output tokens over all requests."""
        return sum(self.output_lengths)

    def prompts_of_round(self, index: int) -> list[list[int]]:
        """The prompts of a repetition: shifted ids where the workload wants a cold prefix cache."""
        if index == 0 or not self.fresh_prompts:
            return self.prompts
        return [[(token + 7 * index) % 150_000 + 100 for token in prompt] for prompt in self.prompts]


def make_workloads(seed: int = 0, scale: float = 1.0) -> dict[str, Workload]:
    """All workloads; `scale` below 1 shrinks counts and lengths for machines that are not a GPU."""
    rng = random.Random(seed)  # noqa: S311 - no secret

    def ids(count: int) -> list[int]:
        return [rng.randint(100, 150_000) for _ in range(count)]

    def scaled(value: int) -> int:
        return max(1, round(value * scale))

    shared = ids(scaled(2048))
    low, high = scaled(100), scaled(1024)
    offline = [ids(rng.randint(low, high)) for _ in range(scaled(256))]
    offline_lengths = [rng.randint(low, high) for _ in range(scaled(256))]
    every = [
        Workload(name="W1", title="offline256", prompts=offline, output_lengths=offline_lengths),
        Workload(
            name="W2", title="latency1", prompts=[ids(scaled(128))], output_lengths=[scaled(512)], rounds=3
        ),
        Workload(
            name="W3",
            title="prefill",
            prompts=[ids(scaled(4096)) for _ in range(scaled(32))],
            output_lengths=[1] * scaled(32),
        ),
        Workload(
            name="W4",
            title="decode64",
            prompts=[ids(scaled(32)) for _ in range(scaled(64))],
            output_lengths=[scaled(512)] * scaled(64),
        ),
        Workload(
            name="W5",
            title="shared2048",
            prompts=[shared + ids(scaled(64)) for _ in range(scaled(128))],
            output_lengths=[scaled(64)] * scaled(128),
            fresh_prompts=False,
        ),
        Workload(
            name="W6",
            title="long32000",
            prompts=[ids(scaled(32_000)) for _ in range(4)],
            output_lengths=[scaled(128)] * 4,
        ),
    ]
    return {workload.name: workload for workload in every}


def draw_workload(
    num_requests: int, prompt: Lengths, output: Lengths, *, highest_id: int, seed: int = 0, rounds: int = 2
) -> Workload:
    """Requests of random lengths over random ids.

    Args:
        num_requests: How many.
        prompt: Tokens of a prompt.
        output: Tokens of an answer.
        highest_id: Ids are drawn up to here.
        seed: Of the draws.
        rounds: Repetitions, each with new prompts.

    Raises:
        ServerError: `num_requests` or `rounds` is below 1.
    """
    for name, value in (("requests", num_requests), ("rounds", rounds)):
        if value < 1:
            raise ServerError(f"{name}: must be at least 1, got {value}")
    numbers = random.Random(seed)  # noqa: S311 - no secret
    lowest = min(_LOWEST_ID, highest_id)
    prompts = [
        [numbers.randint(lowest, highest_id) for _ in range(prompt.draw(numbers))]
        for _ in range(num_requests)
    ]
    return Workload(
        name="random",
        title=f"{num_requests} requests, {prompt} in, {output} out",
        prompts=prompts,
        output_lengths=[output.draw(numbers) for _ in range(num_requests)],
        rounds=rounds,
    )
