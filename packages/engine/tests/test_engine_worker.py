"""The worker against transformers on the real model, through hand-made plans."""

import numpy as np
import pytest
import torch
from llm_distributed import DeviceMesh, InProcessExecutor, StepFailed
from llm_engine.worker import (
    InvalidOption,
    KVCacheTooSmall,
    PlanError,
    RowParams,
    WorkerConfig,
    create_worker,
)
from llm_kvcache import COPY
from llm_scheduler import NewRow, Ragged, StepPlan

BLOCK = 16
PROMPTS = [
    [504, 3575, 282, 4649, 314],
    [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198],
    list(range(400, 437)),
]


@pytest.fixture(scope="module")
def worker():
    torch.set_num_threads(1)
    config = WorkerConfig(
        model="smollm2",
        device="cpu",
        max_model_len=256,
        kv_cache_bytes=64 * 2**20,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        block_size=BLOCK,
    )
    made = create_worker(DeviceMesh(), config=config)
    made.load()
    made.allocate_kv(made.size_kv_cache())
    return made


@pytest.fixture(autouse=True)
def clean(request):
    if "worker" in request.fixturenames:
        request.getfixturevalue("worker").reset()


@pytest.fixture(scope="module")
def reference(worker):
    """transformers with our loaded weights' source: logits of one sequence in float32."""
    transformers = pytest.importorskip("transformers")
    from llm_models import resolve

    path = resolve("smollm2").path
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    return model.eval()


class Rows:
    """The least scheduler: it hands out blocks, never takes any back, and builds one plan at a time."""

    def __init__(self, worker):
        self.worker = worker
        self.step = 0
        self.next_block = 0
        self.computed = {}
        self.reserved = {}

    def plan(self, chunks, *, admit=(), samples=None, released=(), transfers=()):
        """`chunks`: slot to number of tokens, decode rows first."""
        slots = list(chunks)
        for row in admit:
            self.computed[row.slot] = self.reserved[row.slot] = 0
        blocks = []
        for slot in slots:
            needed = -(-(self.computed[slot] + chunks[slot]) // BLOCK) - self.reserved[slot]
            blocks.append(list(range(self.next_block, self.next_block + needed)))
            self.next_block += needed
            self.reserved[slot] += needed
        made = StepPlan(
            step_id=self.step,
            slots=np.array(slots, np.int32),
            num_tokens=np.array([chunks[s] for s in slots], np.int32),
            num_computed=np.array([self.computed[s] for s in slots], np.int32),
            samples=np.array([True if samples is None else s in samples for s in slots]),
            new_blocks=(Ragged.from_rows(blocks),),
            admitted=list(admit),
            released=np.array(released, np.int32),
            transfers=np.array(transfers, np.int32).reshape(-1, 3),
        )
        self.step += 1
        for slot in slots:
            self.computed[slot] += chunks[slot]
        return made

    def run(self, chunks, **options):
        return self.worker.execute(self.plan(chunks, **options)).result()


def new_row(slot, prompt, outputs=(), **params):
    params = {"seed": 0, "temperature": 0.0, **params}
    return NewRow(slot, f"r{slot}", np.array([*prompt, *outputs], np.int32), len(prompt), RowParams(**params))


def generate(worker, prompt, count, *, slot=0, chunk=None, **params):
    rows = Rows(worker)
    chunk = chunk or len(prompt)
    admit, done = [new_row(slot, prompt, **params)], 0
    tokens = []
    while done < len(prompt):
        size = min(chunk, len(prompt) - done)
        done += size
        result = rows.run({slot: size}, admit=admit, samples={slot} if done == len(prompt) else set())
        admit = []
    tokens += result.tokens.row(0).tolist()
    while len(tokens) < count:
        tokens += rows.run({slot: 1}).tokens.row(0).tolist()
    worker.reset()
    return tokens


@torch.inference_mode()
def reference_tokens(reference, prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(reference(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_tokens_equal_transformers(worker, reference, prompt):
    assert generate(worker, prompt, 8) == reference_tokens(reference, prompt, 8)


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.9, "seed": 5}, {"temperature": 1.2, "top_p": 0.8, "seed": -3}]
)
def test_chunked_equals_whole(worker, params):
    whole = generate(worker, PROMPTS[2], 6, **params)
    assert generate(worker, PROMPTS[2], 6, chunk=7, slot=3, **params) == whole
    assert generate(worker, PROMPTS[0], 3, chunk=1, slot=7, **params) == generate(
        worker, PROMPTS[0], 3, **params
    )


def test_rows_together_equal_rows_alone(worker):
    """Different parameters side by side; a prompt joins while the other decodes."""
    settings = [
        {"temperature": 0.8, "seed": 11, "top_k": 20, "top_p": 0.9},
        {"temperature": 0.0, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
        {"temperature": 1.0, "seed": 13, "min_p": 0.05, "logit_bias": {28: 5.0, 30: -100.0}},
    ]
    alone = [
        generate(worker, p, 8, slot=i, **s) for i, (p, s) in enumerate(zip(PROMPTS, settings, strict=True))
    ]
    rows, tokens = Rows(worker), {0: [], 1: [], 2: []}

    def run(chunks, **options):
        result = rows.run(chunks, **options)
        for index, slot in enumerate(chunks):
            tokens[slot] += result.tokens.row(index).tolist()

    run({0: len(PROMPTS[0])}, admit=[new_row(0, PROMPTS[0], **settings[0])])
    run(
        {0: 1, 1: len(PROMPTS[1]), 2: 20},
        admit=[new_row(1, PROMPTS[1], **settings[1]), new_row(2, PROMPTS[2], **settings[2])],
        samples={0, 1},
    )
    run({1: 1, 0: 1, 2: len(PROMPTS[2]) - 20})
    for _ in range(7):
        run({2: 1, 0: 1, 1: 1})
    assert [tokens[i][:8] for i in range(3)] == alone


def test_the_next_plan_may_be_launched_before_the_result_is_read(worker):
    whole = generate(worker, PROMPTS[0], 8, temperature=0.7, seed=3)
    rows = Rows(worker)
    pending = [
        worker.execute(
            rows.plan({0: len(PROMPTS[0])}, admit=[new_row(0, PROMPTS[0], temperature=0.7, seed=3)])
        )
    ]
    tokens = []
    for _ in range(7):
        pending.append(worker.execute(rows.plan({0: 1})))
        tokens += pending.pop(0).result().tokens.values.tolist()
    tokens += pending.pop().result().tokens.values.tolist()
    assert tokens == whole


@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.9, "seed": 5}, {"repetition_penalty": 1.5, "frequency_penalty": 0.3}],
)
def test_a_preempted_row_goes_on_as_if_nothing_had_happened(worker, params):
    whole = generate(worker, PROMPTS[1], 9, **params)
    resumed = Rows(worker)
    known = [*PROMPTS[1], *whole[:4]]
    result = resumed.run({5: len(known)}, admit=[new_row(5, PROMPTS[1], whole[:4], **params)])
    tokens = whole[:4] + result.tokens.values.tolist()
    while len(tokens) < 9:
        tokens += resumed.run({5: 1}).tokens.values.tolist()
    assert tokens == whole


def test_a_slot_given_back_and_taken_in_the_same_plan(worker):
    alone = generate(worker, PROMPTS[0], 3)
    rows = Rows(worker)
    rows.run({0: len(PROMPTS[2])}, admit=[new_row(0, PROMPTS[2], logit_bias={7: 50.0}, logprobs=2)])
    result = rows.run({0: len(PROMPTS[0])}, admit=[new_row(0, PROMPTS[0])], released=[0])
    assert result.logprobs == {}
    assert result.tokens.values.tolist() == alone[:1]


def test_copied_blocks_hold_the_same_keys(worker):
    """A fork by hand: slot 1 shares the first block and gets a copy of the second."""
    prompt = list(range(300, 324))
    whole = generate(worker, prompt, 4)
    rows = Rows(worker)
    rows.run({0: 24}, admit=[new_row(0, prompt)])
    fork = StepPlan(
        step_id=1,
        slots=np.array([1], np.int32),
        num_tokens=np.array([1], np.int32),
        num_computed=np.array([24], np.int32),
        samples=np.array([True]),
        new_blocks=(Ragged.from_rows([[0, 9]]),),
        admitted=[new_row(1, prompt, whole[:1])],
        released=np.array([], np.int32),
        transfers=np.array([[COPY, 1, 9]], np.int32),
    )
    assert worker.execute(fork).result().tokens.values.tolist() == whole[1:2]


def test_logprobs_equal_transformers(worker, reference):
    prompt = PROMPTS[1]
    rows = Rows(worker)
    result = rows.run({0: len(prompt), 1: 5}, admit=[new_row(0, prompt, logprobs=3), new_row(1, PROMPTS[0])])
    assert set(result.logprobs) == {0}
    (entry,) = result.logprobs[0]
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    top = expected.topk(3)
    assert (entry.token_id, entry.rank) == (int(top.indices[0]), 1)
    assert [token for token, _ in entry.top] == top.indices.tolist()
    assert [p for _, p in entry.top] == pytest.approx(top.values.tolist(), abs=1e-3)
    assert entry.logprob == pytest.approx(float(top.values[0]), abs=1e-3)


@pytest.mark.parametrize("chunk", [37, 9, 36])
def test_prompt_logprobs_come_whole_with_the_end_of_the_prompt(worker, reference, chunk):
    prompt = PROMPTS[2]
    rows, admit, done = Rows(worker), [new_row(0, prompt, prompt_logprobs=2)], 0
    while done < len(prompt):
        size = min(chunk, len(prompt) - done)
        done += size
        ends = done == len(prompt)
        result = rows.run({0: size}, admit=admit, samples={0} if ends else set())
        admit = []
        assert (0 in result.prompt_logprobs) == ends
    assert rows.run({0: 1}).prompt_logprobs == {}
    entries = result.prompt_logprobs[0]
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert entries[0] is None
    assert [e.token_id for e in entries[1:]] == prompt[1:]
    for position, entry in enumerate(entries[1:]):
        row = expected[position]
        assert entry.logprob == pytest.approx(float(row[prompt[position + 1]]), abs=2e-3)
        assert [p for _, p in entry.top] == pytest.approx(row.topk(2).values.tolist(), abs=2e-3)


def test_prompt_logprobs_of_one_token(worker):
    result = Rows(worker).run({0: 1}, admit=[new_row(0, [5], prompt_logprobs=0)])
    assert result.prompt_logprobs == {0: (None,)}


def test_stop_tokens_cannot_be_drawn_before_min_tokens(worker):
    prompt = PROMPTS[0]
    plain = generate(worker, prompt, 6)
    stops = tuple(set(plain[:2]))
    held = generate(worker, prompt, 6, min_tokens=2, stop_token_ids=stops)
    assert not set(held[:2]) & set(stops)
    forced = generate(worker, prompt, 4, min_tokens=2, stop_token_ids=stops, logit_bias={stops[0]: 1000.0})
    assert stops[0] not in forced[:2]
    assert forced[2] == stops[0]


def test_a_row_with_broken_logits_fails_alone(worker):
    """NaN keys of one row, as a broken kernel or a poisoned cache would leave them."""
    alone = generate(worker, PROMPTS[0], 3, slot=1)
    rows = Rows(worker)
    rows.run({0: 16, 1: len(PROMPTS[0])}, admit=[new_row(0, PROMPTS[1], logprobs=1), new_row(1, PROMPTS[0])])
    key_cache = worker._runner.caches[3][0]
    key_cache[0] = torch.nan
    try:
        result = rows.run({0: 1, 1: 1})
    finally:
        key_cache[0] = 0
    assert list(result.faults) == [0]
    assert "NaN" in result.faults[0]
    assert result.tokens.row(0).tolist() == []
    assert result.tokens.row(1).tolist() == alone[1:2]
    assert result.logprobs == {}


def test_ids_beyond_the_sampled_vocabulary_are_never_drawn(worker):
    runner = worker._runner
    runner.sampled_vocab_size = 100
    try:
        tokens = generate(
            worker, PROMPTS[2], 24, temperature=50.0, repetition_penalty=1.1, logprobs=1, seed=1
        )
    finally:
        runner.sampled_vocab_size = None
    assert max(tokens) < 100
    assert len(set(tokens)) > 8


def test_bad_plans_are_refused(worker):
    rows = Rows(worker)
    rows.computed[4] = rows.reserved[4] = 0
    row = NewRow(0, "x", np.array([1], np.int32), 1, {"seed": 1})
    bad = {
        "slots without a request": rows.plan({4: 1}),
        "slot 99": rows.plan({99: 1}, admit=[new_row(99, [1])]),
        "payload": rows.plan({0: 1}, admit=[row]),
    }
    for message, plan in bad.items():
        with pytest.raises(PlanError, match=message):
            worker.execute(plan)
    assert generate(worker, PROMPTS[0], 2) == generate(worker, PROMPTS[0], 2, slot=1)


def test_a_failing_step_leaves_the_executor_alive(worker):
    executor = InProcessExecutor(lambda mesh: worker)
    executor.start()
    rows = Rows(worker)
    rows.computed[4] = rows.reserved[4] = 0
    with pytest.raises(StepFailed, match="PlanError"):
        executor.submit(rows.plan({4: 1})).result()
    plan = rows.plan({0: 5}, admit=[new_row(0, PROMPTS[0])])
    assert len(executor.submit(plan).result().tokens.values) == 1


def test_too_small_a_cache_says_what_to_change(worker):
    config = WorkerConfig(model="smollm2", device="cpu", max_model_len=512, kv_cache_bytes=8 * 2**20)
    from llm_engine.worker.kv_sizing import count_pages

    with pytest.raises(KVCacheTooSmall, match=r"lower max_model_len to at most \d+, or raise kv_cache_bytes"):
        count_pages(worker._loaded.info.kv_layout, config, None)


def test_an_open_context_is_cut_to_what_the_cache_holds(worker):
    config = WorkerConfig(model="smollm2", device="cpu", kv_cache_bytes=8 * 2**20, load_format="dummy")
    other = create_worker(DeviceMesh(), config=config)
    info = other.load()
    assert info.max_model_len == info.model_max_len == 8192
    blocks = other.size_kv_cache()
    assert other.allocate_kv(blocks).max_model_len == blocks * 16 < 512


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("dtype", {"dtype": "int8"}),
        ("device", {"device": "tpu"}),
        ("device", {"device": "cuda:99"}),
        ("threads", {"threads": 0}),
        ("max_model_len", {"max_model_len": 10**6, "load_format": "dummy"}),
    ],
)
def test_bad_options_are_named(field, options):
    with pytest.raises(InvalidOption) as caught:
        create_worker(
            DeviceMesh(), config=WorkerConfig(**{"model": "smollm2", "device": "cpu", **options})
        ).load()
    assert caught.value.field == field
