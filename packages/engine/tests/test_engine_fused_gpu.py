"""All that is fused, in graphs, on a CUDA device: the tokens of the same model in the ops' references.

float32: equal. bfloat16 and e4m3, which round between other steps: equal up to a near-tie.
"""

import json
import random
from contextlib import ExitStack, contextmanager

import pytest
import torch
from engine_tiny_models import KINDS, save_model
from llm_engine import LLM, SamplingParams
from llm_kernels import ops
from llm_kernels.ops.catalog import OPS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# With e4m3 weights these quantize what they are given, which their references do not.
QUANTIZING = {"fp8_linear", "fp8_product", "moe", "grouped_linear"}
STEPS = 24
# Two tokens whose logprobs are nearer than this may change places: bfloat16 logits of this size are 0.0625 to
# 0.125 apart. Where two experts are nearly as likely, a token may go to the other. A number between two e4m3
# ones may be rounded to the other, 6 to 12 % away, and so send its token to another expert.
TIES = {
    ("dense", None): 0.3,
    ("windows", None): 0.3,
    ("moe", None): 0.75,
    ("latents", None): 0.75,
    ("dense", "fp8"): 0.75,
    ("moe", "fp8"): 2.0,
}
# How far rounding activations to e4m3 may move the logprobs of prompts on average; seen: 0.15 and 0.23.
ROUNDING = {"dense": 0.2, "moe": 0.3}
# How far apart the logprobs of the same prompts may be on average.
MEAN_DIFFERENCE = {None: 0.08, "fp8": 0.2}


@contextmanager
def references(*, but=frozenset()):
    """Every op in its plain torch form: nothing is fused."""
    with ExitStack() as stack:
        for name in OPS.keys() - but:
            stack.enter_context(ops.use_backend(name, "torch"))
        if but:
            stack.enter_context(ops.use_backend("gated_linear", "composed"))
        yield


def outputs(folder, prompts, graphs, **options):
    """Of a second round: the first one captures the graphs."""
    llm = LLM(
        folder,
        device="cuda",
        graphs=graphs,
        kv_cache_bytes=1 << 28,
        max_model_len=1024,
        max_num_seqs=64,
        enable_prefix_caching=False,
        progress=False,
        **options,
    )
    try:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=STEPS,
            ignore_eos=True,
            detokenize=False,
            logprobs=2,
            prompt_logprobs=1,
        )
        plain = SamplingParams(temperature=0.0, max_tokens=STEPS, ignore_eos=True, detokenize=False)
        if graphs == "full":
            llm.generate(prompts, plain, progress=False)
        greedy = llm.generate(prompts, plain, progress=False)
        scored = llm.generate(prompts, params, progress=False)
        assert (llm.stats().graph_steps > 0) == (graphs == "full")
    finally:
        llm.shutdown()
    return [(one.outputs[0].token_ids, other) for one, other in zip(greedy, scored, strict=True)]


def prompts_of(count, vocab_size):
    numbers = random.Random(0)
    lengths = [1, 700, 130, 17, *(numbers.randint(2, 60) for _ in range(count - 4))]
    return [[numbers.randrange(5, vocab_size - 10) for _ in range(length)] for length in lengths]


def logprobs_of(prompt_logprobs):
    return torch.tensor([entry.logprob for entry in prompt_logprobs[1:]])


@pytest.mark.parametrize("kind", KINDS)
def test_float32_tokens_are_those_of_the_references(tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps(KINDS[kind]))
    options = {"load_format": "dummy", "dtype": "float32"}
    prompts = prompts_of(21, 5000)
    fused = outputs(str(tmp_path), prompts, "full", **options)
    with references():
        plain = outputs(str(tmp_path), prompts, "none", **options)
    assert [tokens for tokens, _ in fused] == [tokens for tokens, _ in plain]
    for (_, left), (_, right) in zip(fused, plain, strict=True):
        assert left.outputs[0].token_ids == right.outputs[0].token_ids
        found, expected = ([entry.logprob for entry in one.outputs[0].logprobs] for one in (left, right))
        assert found == pytest.approx(expected, abs=1e-3)
        torch.testing.assert_close(
            logprobs_of(left.prompt_logprobs), logprobs_of(right.prompt_logprobs), atol=1e-3, rtol=0
        )


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "quantization"), TIES)
def test_half_precision_tokens_differ_at_near_ties_only(tmp_path, kind, quantization):
    folder = save_model(tmp_path, kind)
    prompts = prompts_of(40, 1024)
    options = {"dtype": "bfloat16", "quantization": quantization}
    fused = outputs(folder, prompts, "full", **options)
    with references(but=QUANTIZING if quantization else frozenset()):
        plain = outputs(folder, prompts, "none", **options)
    equal, gaps, apart = 0, [0.0], []
    for (tokens, scored), (expected, reference) in zip(fused, plain, strict=True):
        equal += tokens == expected
        wanted = reference.outputs[0]
        for found in (tokens, scored.outputs[0].token_ids):
            at = next((i for i in range(STEPS) if found[i] != wanted.token_ids[i]), None)
            if at is not None:
                best, second = wanted.logprobs[at].top[:2]
                gaps.append(best[1] - second[1])
        apart.append((logprobs_of(scored.prompt_logprobs) - logprobs_of(reference.prompt_logprobs)).abs())
    mean = torch.cat(apart).mean().item()
    print(f"{kind} {quantization}: {equal} equal, largest gap {max(gaps):.2f}, apart {mean:.4f}")  # noqa: T201
    assert max(gaps) < TIES[kind, quantization], "tokens differ where no tie was near"
    assert mean < MEAN_DIFFERENCE[quantization]
    # Rounded activations move logprobs by more than the small models' best tokens are apart.
    assert quantization is not None or equal >= 0.25 * len(prompts)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ROUNDING)
def test_fused_e4m3_is_as_near_to_the_exact_model_as_single_steps_are(tmp_path, kind):
    folder = save_model(tmp_path, kind)
    prompts = prompts_of(40, 1024)
    fused = outputs(folder, prompts, "full", dtype="bfloat16", quantization="fp8")
    with references(but=QUANTIZING):
        plain = outputs(folder, prompts, "none", dtype="bfloat16", quantization="fp8")
    with references():  # multiplies what is not rounded by the same weights, widened
        exact = outputs(folder, prompts, "none", dtype="float32", quantization="fp8")

    def distance(found):
        pairs = zip(found, exact, strict=True)
        logprobs = [[logprobs_of(one.prompt_logprobs) for _, one in pair] for pair in pairs]
        return torch.cat([(left - right).abs() for left, right in logprobs]).mean().item()

    near, reference = distance(fused), distance(plain)
    print(f"{kind}: fused {near:.4f}, single steps {reference:.4f} from the exact model")  # noqa: T201
    assert reference < ROUNDING[kind]
    assert near < 1.15 * reference
