"""The offline front end with the real model."""

import math
import os
import signal
import threading

import pytest
import torch
from llm_engine import (
    LLM,
    InvalidOption,
    InvalidRequest,
    RequestFailed,
    SamplingParams,
    StartupError,
    TokensPrompt,
)

GREEDY = SamplingParams(temperature=0.0, max_tokens=16)
PROMPTS = ["The capital of France is", "def add(a, b):", "Once upon a time, in a village by the sea,"]


def texts(outputs):
    return [output.outputs[0].text for output in outputs]


@pytest.fixture(scope="module")
def transformers_model(smollm2_path):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32
    ).eval()


@torch.inference_mode()
def test_greedy_tokens_and_logprobs_equal_transformers(llm, transformers_model):
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=3)
    for output in llm.generate(PROMPTS, params, progress=False):
        prompt, completion = list(output.prompt_token_ids), output.outputs[0]
        logits = transformers_model(torch.tensor([[*prompt, *completion.token_ids]])).logits[0]
        expected = logits[len(prompt) - 1 : -1].log_softmax(-1)
        assert list(completion.token_ids) == expected.argmax(-1).tolist()
        for position, entry in enumerate(completion.logprobs):
            values, ids = expected[position].topk(3)
            assert (entry.token_id, entry.rank) == (completion.token_ids[position], 1)
            assert [token for token, _ in entry.top] == ids.tolist()
            assert [value for _, value in entry.top] == pytest.approx(values.tolist(), abs=1e-3)
            assert entry.logprob == pytest.approx(values[0].item(), abs=1e-3)


@torch.inference_mode()
def test_prompt_logprobs_equal_transformers(llm, transformers_model):
    params = SamplingParams(max_tokens=0, prompt_logprobs=1)
    for _ in range(2):  # the second time the prompt is cached, and must be computed all the same
        (output,) = llm.generate(PROMPTS[2], params, progress=False)
        ids = list(output.prompt_token_ids)
        expected = transformers_model(torch.tensor([ids])).logits[0].log_softmax(-1)
        assert output.prompt_logprobs[0] is None
        assert [entry.token_id for entry in output.prompt_logprobs[1:]] == ids[1:]
        for position, entry in enumerate(output.prompt_logprobs[1:]):
            assert entry.logprob == pytest.approx(expected[position, ids[position + 1]].item(), abs=1e-3)
        completion = output.outputs[0]
        assert (completion.text, completion.token_ids, completion.finish_reason) == ("", (), "length")


def test_results_come_in_input_order_and_every_prompt_form_agrees(llm, tokenizer):
    outputs = llm.generate(PROMPTS, GREEDY, progress=False)
    assert [output.prompt for output in outputs] == PROMPTS
    ids = [tokenizer.encode(prompt) for prompt in PROMPTS]
    assert texts(llm.generate(ids, GREEDY, progress=False)) == texts(outputs)
    assert texts(llm.generate(ids[1], GREEDY, progress=False)) == texts(outputs)[1:2]
    assert texts(llm.generate(PROMPTS[1], GREEDY, progress=False)) == texts(outputs)[1:2]
    assert texts(llm.generate(TokensPrompt(ids[1]), GREEDY, progress=False)) == texts(outputs)[1:2]
    different = [SamplingParams(temperature=0.0, max_tokens=n) for n in (1, 2, 3)]
    lengths = [
        len(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, different, progress=False)
    ]
    assert lengths == [1, 2, 3]


def test_text_is_the_decoded_tokens(llm, tokenizer):
    for prompt in [*PROMPTS, "日本の首都は", "Emoji: 🌶️👩‍🚀"]:
        (output,) = llm.generate(
            prompt, SamplingParams(max_tokens=40, seed=1, ignore_eos=True), progress=False
        )
        assert output.outputs[0].text == tokenizer.decode(list(output.outputs[0].token_ids))


def test_chat_answers_and_has_one_bos(llm, tokenizer):
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    (single,) = llm.chat(messages, SamplingParams(temperature=0.0, max_tokens=32), progress=False)
    assert "Paris" in single.outputs[0].text
    assert single.outputs[0].finish_reason == "stop"
    assert single.outputs[0].stop_reason is None
    assert "<|im_end|>" not in single.outputs[0].text
    rendered = tokenizer.render_chat(messages)
    assert list(single.prompt_token_ids) == tokenizer.encode(rendered, add_special_tokens=False)
    both = llm.chat([messages, messages], SamplingParams(temperature=0.0, max_tokens=32), progress=False)
    assert texts(both) == [single.outputs[0].text] * 2


@pytest.mark.parametrize("messages", [[], "hi", [{"content": "x"}], [5], [[]], None])
def test_chat_refuses_what_is_no_conversation(llm, messages):
    with pytest.raises(InvalidRequest, match="messages"):
        llm.chat(messages, GREEDY, progress=False)


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_cut_the_text(llm, include):
    plain = llm.generate(PROMPTS[0], SamplingParams(temperature=0.0, max_tokens=30), progress=False)[
        0
    ].outputs[0]
    stop = plain.text[12:17]
    start = plain.text.index(stop)
    params = SamplingParams(
        temperature=0.0, max_tokens=30, stop=["@@", stop], include_stop_str_in_output=include, logprobs=0
    )
    (cut,) = llm.generate(PROMPTS[0], params, progress=False)[0].outputs
    assert cut.text == plain.text[: start + len(stop) if include else start]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.token_ids == plain.token_ids[: len(cut.token_ids)]
    assert len(cut.logprobs) == len(cut.token_ids)
    assert stop in llm.tokenizer.decode(list(cut.token_ids))
    assert stop not in llm.tokenizer.decode(list(cut.token_ids[:-1]))
    assert llm.stats().kv_blocks_used == 0


def test_min_tokens_delays_every_kind_of_stop(llm):
    plain = llm.generate(PROMPTS[0], SamplingParams(temperature=0.0, max_tokens=30), progress=False)[
        0
    ].outputs[0]
    late = SamplingParams(temperature=0.0, max_tokens=30, min_tokens=12, stop=plain.text[:2])
    (output,) = llm.generate(PROMPTS[0], late, progress=False)
    assert len(output.outputs[0].token_ids) >= 12
    assert output.outputs[0].text.startswith(plain.text[:2])
    banned = SamplingParams(temperature=0.0, max_tokens=30, min_tokens=12, stop_token_ids=plain.token_ids[:1])
    assert len(llm.generate(PROMPTS[0], banned, progress=False)[0].outputs[0].token_ids) >= 12


def test_a_stop_token_is_named_and_leaves_no_text(llm):
    plain = llm.generate(PROMPTS[0], GREEDY, progress=False)[0].outputs[0]
    token = plain.token_ids[4]
    stopped = SamplingParams(temperature=0.0, max_tokens=16, stop_token_ids=[token])
    (output,) = llm.generate(PROMPTS[0], stopped, progress=False)
    end = plain.token_ids.index(token)
    assert output.outputs[0].token_ids == plain.token_ids[: end + 1]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", token)
    assert output.outputs[0].text == llm.tokenizer.decode(list(plain.token_ids[:end]))


def test_a_special_token_as_stop_string(llm):
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    params = SamplingParams(temperature=0.0, max_tokens=64, stop="<|im_end|>", ignore_eos=True)
    (output,) = llm.chat(messages, params, progress=False)
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", "<|im_end|>")
    assert "im_end" not in output.outputs[0].text


def test_n_choices_differ_share_their_prompt_and_repeat(llm):
    prompt = "My favourite animal is the one that I met on a long walk through the forest, namely the"
    params = SamplingParams(n=3, seed=7, max_tokens=12, temperature=1.2)
    (first,) = llm.generate(prompt, params, progress=False)
    assert [output.index for output in first.outputs] == [0, 1, 2]
    assert len({output.token_ids for output in first.outputs}) == 3
    (again,) = llm.generate(prompt, params, progress=False)
    assert [output.token_ids for output in again.outputs] == [output.token_ids for output in first.outputs]
    (third,) = llm.generate(prompt, SamplingParams(seed=9, max_tokens=12, temperature=1.2), progress=False)
    assert third.outputs[0].token_ids == first.outputs[2].token_ids


def test_choices_share_the_prompts_blocks(llm):
    before = llm.stats()
    prompt = list(range(1000, 1065))
    llm.generate(prompt, SamplingParams(n=3, max_tokens=2, seed=1), progress=False)
    after = llm.stats()
    assert after.prefix_hit_tokens - before.prefix_hit_tokens == 2 * 64


def test_a_seed_repeats_whatever_the_neighbours(llm):
    seeded = SamplingParams(seed=42, temperature=0.8, max_tokens=12, ignore_eos=True)
    other = SamplingParams(temperature=0.8, max_tokens=12, ignore_eos=True)
    alone = llm.generate(PROMPTS[0], seeded, progress=False)[0].outputs[0].token_ids
    for _ in range(2):
        together = llm.generate(PROMPTS[:2], [seeded, other], progress=False)
        swapped = llm.generate(PROMPTS[1::-1], [other, seeded], progress=False)
        assert together[0].outputs[0].token_ids == alone == swapped[1].outputs[0].token_ids


@pytest.mark.parametrize("temperature", [1e-4, 1e-8])
def test_tiny_temperatures_are_greedy(llm, temperature):
    expected = texts(llm.generate(PROMPTS, GREEDY, progress=False))
    tiny = SamplingParams(temperature=temperature, max_tokens=16)
    assert texts(llm.generate(PROMPTS, tiny, progress=False)) == expected


def test_without_detokenizing_there_is_no_text(llm):
    (output,) = llm.generate(PROMPTS[0], SamplingParams(max_tokens=4, detokenize=False), progress=False)
    assert output.outputs[0].text == ""
    assert len(output.outputs[0].token_ids) == 4


BAD_BATCHES = [
    ("", GREEDY, "prompt"), ([], GREEDY, "prompt"), ([[]], GREEDY, "prompt"), (["a", ""], GREEDY, "prompt"),
    (5, GREEDY, "prompt"), (["ok", 5], GREEDY, "prompt"), ([1, 2, 10**9], GREEDY, "prompt"),
    ([[1], [2, -1]], GREEDY, "prompt"), ([5] * 512, GREEDY, "prompt"), ("a", {"max_tokens": 3}, "params"),
    (["a", "b"], [GREEDY], "params"), ("a", SamplingParams(max_tokens=512), "max_tokens"),
    ("a", SamplingParams(logit_bias={60_000: 1}), "logit_bias"),
]  # fmt: skip


@pytest.mark.parametrize(("prompts", "params", "field"), BAD_BATCHES)
def test_bad_input_is_refused_before_anything_runs(llm, prompts, params, field):
    before = llm.stats()
    with pytest.raises(InvalidRequest) as caught:
        llm.generate(prompts, params, progress=False)
    assert caught.value.field == field
    after = llm.stats()
    assert (after.steps, after.requests_added, after.running) == (before.steps, before.requests_added, 0)


@pytest.mark.parametrize("delay_s", [0.3, 0.5, 0.7])
def test_an_interrupt_aborts_and_leaves_the_engine_usable(llm, delay_s):
    expected = texts(llm.generate(PROMPTS, GREEDY, progress=False))
    long = SamplingParams(temperature=0.0, max_tokens=480, ignore_eos=True)
    timer = threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(PROMPTS, long, progress=False)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    stats = llm.stats()
    assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)
    assert texts(llm.generate(PROMPTS, GREEDY, progress=False)) == expected


def test_a_failing_step_raises_with_the_outputs(llm, monkeypatch):
    from llm_engine.worker.worker import Worker

    def broken(self, plan):
        raise RuntimeError("no such kernel")

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "execute", broken)
        with pytest.raises(RequestFailed, match="no such kernel") as caught:
            llm.generate(PROMPTS[:2], GREEDY, progress=False)
    assert [output.outputs[0].finish_reason for output in caught.value.outputs] == ["error", "error"]
    assert len(llm.generate(PROMPTS, GREEDY, progress=False)) == 3


@pytest.mark.parametrize("overlap", [False, True])
def test_more_prompts_than_the_queue_takes(overlap):
    options = {
        "threads": 1,
        "max_num_seqs": 2,
        "max_waiting_requests": 2,
        "max_waiting_tokens": 40,
        "overlap": overlap,
    }
    prompts = [[100 + i] * 20 for i in range(12)]
    with LLM(
        "smollm2", device="cpu", max_model_len=64, kv_cache_bytes=16 << 20, progress=False, **options
    ) as llm:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=3, ignore_eos=True), progress=False)
        assert [list(output.prompt_token_ids) for output in outputs] == prompts
        assert all(len(output.outputs[0].token_ids) == 3 for output in outputs)


def test_startup_errors_are_one_line(tmp_path):
    with pytest.raises(InvalidOption, match="max_num_seq"):
        LLM("smollm2", max_num_seq=3)
    with pytest.raises(StartupError, match="ModelNotFound") as caught:
        LLM(str(tmp_path / "nothing"))
    assert "\n" not in str(caught.value)
    with pytest.raises(StartupError, match="KVCacheTooSmall"):
        LLM("smollm2", device="cpu", kv_cache_bytes=1 << 20, max_model_len=512, progress=False)
    with pytest.raises(StartupError, match="SchedulerNotFound"):
        LLM(
            "smollm2",
            device="cpu",
            kv_cache_bytes=32 << 20,
            max_model_len=64,
            scheduler="nope",
            progress=False,
        )


def test_logprobs_are_finite(llm):
    params = SamplingParams(temperature=0.01, top_p=0.3, logprobs=5, max_tokens=8, ignore_eos=True)
    (output,) = llm.generate(PROMPTS[0], params, progress=False)
    assert all(math.isfinite(value) for entry in output.outputs[0].logprobs for _, value in entry.top)


def test_an_open_context_is_what_the_cache_holds():
    with LLM("smollm2", device="cpu", threads=1, kv_cache_bytes=4 << 20, progress=False) as small:
        assert small.max_model_len == small.stats().kv_blocks_total * 16 < 8192
        with pytest.raises(InvalidRequest, match="prompt"):
            small.generate([5] * small.max_model_len, GREEDY, progress=False)
