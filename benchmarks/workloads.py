"""The workloads W1 to W6 of the performance notebook, as prompts and output lengths drawn from a seed.

They draw the same numbers in the same order as the script that measured the peers.
"""

import random
from dataclasses import dataclass, field


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
    rng = random.Random(seed)

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
