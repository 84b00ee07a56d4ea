"""Fault case C103: the host's memory stays flat over many requests that end and many that are taken back.

All that keeps requests is real (front half, core, scheduler, cache); only the tokens are arithmetic.
"""

import gc
import tracemalloc

import numpy as np
import pytest
from llm_engine.core.messages import Abort
from llm_engine.output_processor import OutputProcessor
from llm_engine.prompts import TokensPrompt
from llm_engine.request_builder import RequestBuilder
from llm_engine.sampling_params import SamplingParams
from test_engine_core_loop import make_core

BATCH = 32
ROUNDS = 80  # and a tenth more to warm up


@pytest.mark.parametrize("aborted", [False, True], ids=["ended", "taken back"])
def test_memory_stays_flat(aborted):
    core = make_core(True, num_blocks=256, max_num_seqs=BATCH, budget=256)
    builder = RequestBuilder(None, core.info, 0)
    processor = OutputProcessor(None, 4)
    params = SamplingParams(max_tokens=8 if aborted else 1, detokenize=False, temperature=0.0)
    generator = np.random.default_rng(0)
    ended = 0

    def sink(delta):
        nonlocal ended
        ended += getattr(delta, "finish_reason", None) is not None

    def run_round():
        lives = []
        for _ in range(BATCH):
            prompt = TokensPrompt(generator.integers(0, 900, 12).tolist())
            live = builder.build(prompt, params, "same", 0, sink)
            core.intake(processor.open(live))
            lives.append(live)
        steps = 0
        while core.has_work():
            followup = processor.process(core.step())
            core.intake(followup.add)
            steps += 1
            if aborted and steps == 2:
                for live in lives:
                    core.intake([Abort(processor.close(live))])

    for _ in range(ROUNDS // 10):
        run_round()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(ROUNDS):
            run_round()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert aborted or ended == (ROUNDS + ROUNDS // 10) * BATCH
    assert processor.num_live == 0
    # A request that left a list behind would leave more than twice as much.
    assert after - before < 60_000, f"{after - before} bytes more after {ROUNDS * BATCH} requests"
