"""Compares `fcfs`, `prefix` and a policy of one's own on a shared-prefix trace, in the simulator.

Run it as it stands (`python docs/examples/compare_policies.py`), or cell by cell in an editor that knows
`# %%`. It needs `pip install 'llm-stack-scheduler[plot]'`, no GPU and no model.
"""

# %% [markdown]
# ## The workload
# Questions about documents. Each of 24 documents is the prefix of many prompts, some documents are asked for
# far more often than others, and requests come in bursts, so that a queue builds up and its order matters.

# %%
from pathlib import Path

from llm_scheduler import Policy, Request, SchedulerConfig
from llm_scheduler.sim import (
    EngineSetup,
    Process,
    Slo,
    StepTimeModel,
    SyntheticSpec,
    compare,
    draw,
    format_table,
    parse_lengths,
    summarize,
    synthesize,
)

workload = synthesize(
    SyntheticSpec(
        num_requests=1500,
        process=Process.GAMMA,
        rate=14.0,
        cv=4.0,
        prefix_groups=24,
        prefix_tokens=parse_lengths("uniform:2000:6000"),
        prefix_zipf=0.8,
        prompt_tokens=parse_lengths("lognormal:120:0.8:1000"),
        output_tokens=parse_lengths("lognormal:100:0.7:500"),
    ),
    seed=1,
)
print(f"{summarize(workload).repeated_share:.0%} of the prompt tokens repeat")

# %% [markdown]
# ## The engine
# 4,000 blocks of 16 tokens hold 64,000 tokens: the running requests and a few documents, not all of them. The
# constants of the step time are made up: round numbers of a plausible size. `llm-sim fit` gets those of a
# real engine from its recorded steps.

# %%
setup = EngineSetup(
    config=SchedulerConfig(max_model_len=8192, max_num_seqs=64, max_num_batched_tokens=4096),
    num_blocks=4000,
)
step_time = StepTimeModel(
    per_step_s=0.006,
    per_prefill_token_s=2.5e-5,
    per_decode_row_s=2e-5,
    per_context_token_s=2e-8,
    per_prefill_pair_s=5e-10,
)

# %% [markdown]
# ## A policy of one's own
# The shortest prompt first. `key` is all that a static order needs; the scheduler's aging keeps long prompts
# from waiting for ever.


# %%
class ShortestPromptFirst(Policy):
    """By the length of the prompt, then by arrival."""

    def key(self, request: Request) -> tuple[float, ...]:
        """Return ``(prompt tokens, arrival_s)``; smaller is served earlier."""
        return (len(request.token_ids), request.arrival_s)


# %% [markdown]
# ## Side by side
# Same requests, same engine, same seed: what differs is the order alone. The clock is simulated, so the speed
# of the machine does not matter.

# %%
results = compare(workload, setup, step_time, ["fcfs", "prefix", ShortestPromptFirst], slo=Slo(ttft_s=2.0))
print(format_table([result.report for result in results]))

# %%
picture = Path(__file__).with_suffix(".svg") if "__file__" in globals() else Path("compare_policies.svg")
draw(results, picture, title="Questions about 24 documents: three orders of the queue")
