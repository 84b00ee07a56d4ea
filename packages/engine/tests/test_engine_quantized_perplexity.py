"""Fault case C157: a model with 8-bit weights still reads texts, rather than saying "!!!!" to all of them.

SmolLM2 comes in 4 bits here and is small, so its rounding is coarser than the case allows a large model:
9 % were seen on these texts. A model that is broken is off by orders of magnitude.
"""

import math

from llm_engine import LLM, SamplingParams

TEXTS = [
    "The capital of France is Paris, a city on the river Seine that is known for its museums and cafés.",
    "Water boils at one hundred degrees Celsius at sea level, and at a lower temperature on a mountain.",
    "def add(a, b):\n    return a + b\n\n\ndef multiply(a, b):\n    return a * b\n",
    "Once upon a time there was a small village at the edge of a forest, where an old woman lived alone.",
]
SCORED = SamplingParams(max_tokens=0, prompt_logprobs=0, temperature=0.0)


def perplexity(llm):
    outputs = llm.generate(TEXTS, SCORED)
    logprobs = [entry.logprob for output in outputs for entry in output.prompt_logprobs or () if entry]
    return math.exp(-sum(logprobs) / len(logprobs))


def test_eight_bits_still_read(llm):
    plain = perplexity(llm)
    narrow = LLM("smollm2", quantization="fp8", max_model_len=256, progress=False)
    try:
        quantized = perplexity(narrow)
    finally:
        narrow.shutdown()
    assert 1 < plain < 100
    assert abs(quantized / plain - 1) < 0.15, (plain, quantized)
