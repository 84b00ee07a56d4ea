"""The caps that a configuration asks for; knows nothing of how they work."""

from __future__ import annotations

from llm_scheduler.caps import Cap
from llm_scheduler.config import SchedulerConfig
from llm_scheduler.running_caps import LoraSlots, SeqsPerTenant
from llm_scheduler.step_caps import DraftLengths, EncoderBudget, LongPrefillShare


def configured_caps(config: SchedulerConfig) -> list[Cap]:
    """Make a cap for each setting that limits something."""
    caps: list[Cap] = []
    if config.max_loras is not None:
        caps.append(LoraSlots(config.max_loras))
    if config.max_num_seqs_per_tenant is not None:
        caps.append(SeqsPerTenant(config.max_num_seqs_per_tenant))
    if config.encoder_budget is not None:
        caps.append(EncoderBudget(config.encoder_budget))
    if config.long_prefill_share is not None:
        caps.append(LongPrefillShare(config.long_prefill_share, config.long_prompt_tokens))
    if config.draft_lengths:
        caps.append(DraftLengths(config.draft_lengths))
    return caps
