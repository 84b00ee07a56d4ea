"""A worker in place of the model's, named as `module:factory`: here the benchmarks' own, without a model."""

from pathlib import Path

import pytest
from llm_engine import LLM, SamplingParams
from llm_engine.errors import StartupError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
OPTIONS = {"max_model_len": 256, "max_num_seqs": 4, "threads": 1, "progress": False}


def test_a_worker_of_ones_own_says_what_it_wants(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import null_worker  # type: ignore[import-not-found, unused-ignore]

    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    prompts = ["a", "b c d", "e f", "many more words than before", "and a fifth, which must wait"]
    with LLM("smollm2", worker="null_worker:at_once", **OPTIONS) as llm:
        outputs = llm.generate(prompts, params, progress=False)
        expected = null_worker.answer_text(llm.tokenizer, 200)
        stats = llm.stats()
    assert [output.outputs[0].text for output in outputs] == [expected] * 5
    assert null_worker.TEXT in expected
    assert stats.kv_blocks_used == 0


@pytest.mark.parametrize("path", ["nowhere:at_once", "null_worker:nothing", "null_worker:TEXT", "x"])
def test_a_worker_that_is_none_is_named(monkeypatch, path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    with pytest.raises(StartupError, match="worker"):
        LLM("smollm2", worker=path, **OPTIONS)
