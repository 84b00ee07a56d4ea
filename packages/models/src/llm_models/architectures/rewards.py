"""Owns the specs of reward models: decoders with a head of their own over the last token or over each."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llm_models.architectures import architecture
from llm_models.architectures.internlm import internlm2
from llm_models.architectures.qwen2 import qwen2
from llm_models.names import Target
from llm_models.pooling import Dense, PooledSpec, PoolingKind
from llm_models.spec import DecoderSpec, Head


def _over(
    body: DecoderSpec,
    names: Mapping[str, Target],
    head: tuple[Dense, ...],
    pooling: PoolingKind,
    labels: tuple[str, ...],
) -> PooledSpec:
    # The decoder's own head is not used: tied, it has no parameters.
    body = replace(body, head=Head(tied=True), names=body.names.but(top=names))
    return PooledSpec(body=body, pooling=pooling, head=head, labels=labels)


def _qwen2(config: Mapping[str, Any], pooling: PoolingKind, labels: tuple[str, ...]) -> PooledSpec:
    body = qwen2(config)
    head = (
        Dense(name="reward_hidden", size=body.hidden_size, activation="relu"),
        Dense(name="reward", size=len(labels)),
    )
    return _over(body, {"score.0": "reward_hidden", "score.2": "reward"}, head, pooling, labels)


@architecture("Qwen2ForRewardModel")
def qwen2_reward(config: Mapping[str, Any]) -> PooledSpec:
    """Qwen 2.5 Math RM: one score, read at the last token."""
    return _qwen2(config, "last", ("reward",))


@architecture("Qwen2ForProcessRewardModel")
def qwen2_process_reward(config: Mapping[str, Any]) -> PooledSpec:
    """Qwen 2.5 Math PRM: two scores for each token; those at the ends of steps count."""
    return _qwen2(config, "token", ("bad", "good"))


@architecture("InternLM2ForRewardModel")
def internlm2_reward(config: Mapping[str, Any]) -> PooledSpec:
    """InternLM 2 Reward: one score, read at the last token."""
    head = (Dense(name="reward", size=1, bias=False),)
    return _over(internlm2(config), {"v_head": "reward"}, head, "last", ("reward",))
