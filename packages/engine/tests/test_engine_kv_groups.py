"""Several KV groups in the real core: windows, chunks, latents and states, against a cache-free computation.

The model is small but honest: each token depends on every earlier one that its layers let it see, and the
cached way reads nothing but its caches. The pool is short, so pages go from group to group all the time.
"""

import functools
import random

import numpy as np
import pytest
import torch
from llm_distributed import InProcessExecutor
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.messages import AddRequest, CoreInfo
from llm_engine.worker.cache_layout import LayoutOptions, choose_layout
from llm_engine.worker.kv_pool import allocate_pool
from llm_engine.worker.model_runner import ModelRunner
from llm_engine.worker.row_params import RowParams
from llm_kvcache import KVCache
from llm_models.caches import KVCacheSpec, LatentCacheSpec, StateCacheSpec
from llm_scheduler import SchedulerConfig, TokenBudgetScheduler

VOCAB, WIDTH, HEADS, SIZE = 61, 16, 2, 8
BLOCK, INTERVAL, MAX_LEN = 4, 8, 64


class ToyModel:
    """A residual stack of mixers in float64; `mixers` are (kind, span)."""

    device = torch.device("cpu")
    dtype = torch.float64

    def __init__(self, mixers, layout):
        torch.manual_seed(sum(map(len, map(str, mixers))))
        self.mixers = mixers
        self.embedding = torch.randn(VOCAB, WIDTH, dtype=self.dtype)
        self.head = torch.randn(WIDTH, VOCAB, dtype=self.dtype)
        self.weights = [torch.randn(5, WIDTH, WIDTH, dtype=self.dtype) / WIDTH**0.5 for _ in mixers]
        self.caches = tuple(cache_of(kind, span) for kind, span in mixers)
        groups = {cache: group for group in layout.groups for cache in group.caches} if layout else {}
        self.block_sizes = [groups[index].block_size for index in range(len(groups))]

    def parameters(self):
        return iter([self.embedding, self.head, *self.weights])

    def forward(self, input_ids, metadata, caches):
        hidden = self.embedding[input_ids]
        for layer, (kind, span) in enumerate(self.mixers):
            mixed = torch.zeros_like(hidden)
            for row in self.rows(metadata[layer]):
                self.run_row(layer, kind, span, row, metadata[layer], caches[layer], hidden, mixed)
            hidden = hidden + torch.tanh(mixed)
        return hidden

    def raw_logits(self, hidden):
        return (hidden @ self.head).float()

    @staticmethod
    def rows(metadata):
        """(row, first token, end, tokens before) of each row that is no padding."""
        starts = metadata.cu_query_lens.tolist()
        for row, context in enumerate(metadata.context_lens.tolist()):
            if context:
                begin, end = starts[row], starts[row + 1]
                yield row, begin, end, context - (end - begin)

    def run_row(self, layer, kind, span, row, metadata, caches, hidden, mixed):
        index, begin, end, before = row
        size = self.block_sizes[layer]
        table = metadata.block_tables[index].tolist()
        if kind == "state":
            assert metadata.slot_mapping.numel() == 0
            state = torch.zeros(WIDTH, dtype=self.dtype)
            count = torch.zeros(3, dtype=torch.float32)
            if before:
                state, count = (cache[table[(before - 1) // size]].clone() for cache in caches)
            for token in range(begin, end):
                mixed[token], state, count = self.recur(layer, hidden[token], state, count)
                position = before + token - begin
                if token == end - 1 or (position + 1) % size == 0:
                    for cache, value in zip(caches, (state, count), strict=True):
                        cache[table[position // size]] = value
            return
        table = torch.tensor(table)
        positions = torch.arange(before, before + end - begin)
        slots = metadata.slot_mapping[begin:end]
        assert slots.tolist() == (table[positions // size] * size + positions % size).tolist()
        assert metadata.positions[begin:end].tolist() == positions.tolist()
        for cache, value in zip(caches, self.entries(layer, kind, hidden[begin:end]), strict=True):
            cache[slots // size, slots % size] = value
        # Only what the first of the tokens sees and later: earlier entries may be anybody's by now.
        seen = torch.arange(first_seen(kind, span, before), before + end - begin)
        entries = [cache[table[seen // size], seen % size].flatten(1) for cache in caches]
        mixed[begin:end] = self.attend(layer, kind, span, hidden[begin:end], positions, seen, entries)

    def entries(self, layer, kind, x):
        key, value = x @ self.weights[layer][0], x @ self.weights[layer][1]
        if kind == "latent":
            return (torch.cat([key, value], dim=1),)
        return key.view(-1, HEADS, SIZE), value.view(-1, HEADS, SIZE)

    def attend(self, layer, kind, span, x, positions, seen, entries):
        keys, values = entries if len(entries) == 2 else entries[0].split(WIDTH, dim=1)
        first = torch.tensor([first_seen(kind, span, position) for position in positions.tolist()])
        hides = (seen > positions[:, None]) | (seen < first[:, None])
        scores = (x @ self.weights[layer][2]) @ keys.T
        return scores.masked_fill(hides, float("-inf")).softmax(-1) @ values

    def recur(self, layer, x, state, count):
        """A gated state, and a count in another format that the output depends on too."""
        gate = torch.sigmoid(x @ self.weights[layer][3])
        state = gate * state + (1 - gate) * (x @ self.weights[layer][4])
        count = (count + x[:3].float()).remainder(1.5)
        return state + torch.cat([count, count.new_zeros(WIDTH - 3)]), state, count

    def next_tokens(self, prompt, num_tokens):
        """Greedy tokens without any cache."""
        tokens = list(prompt)
        for _ in range(num_tokens):
            hidden = self.embedding[torch.tensor(tokens)]
            for layer, (kind, span) in enumerate(self.mixers):
                hidden = hidden + torch.tanh(self.mix_whole(layer, kind, span, hidden))
            tokens.append(int(self.raw_logits(hidden[-1]).argmax()))
        return tokens[len(prompt) :]

    def mix_whole(self, layer, kind, span, hidden):
        if kind == "state":
            state, count, outs = torch.zeros(WIDTH, dtype=self.dtype), torch.zeros(3), []
            for x in hidden:
                out, state, count = self.recur(layer, x, state, count)
                outs.append(out)
            return torch.stack(outs)
        entries = [entry.flatten(1) for entry in self.entries(layer, kind, hidden)]
        positions = torch.arange(len(hidden))
        return self.attend(layer, kind, span, hidden, positions, positions, entries)


def first_seen(kind, span, position):
    if kind == "window":
        return max(position - span + 1, 0)
    return position // span * span if kind == "chunk" else 0


def cache_of(kind, span):
    if kind == "state":
        return StateCacheSpec(state_shapes=((WIDTH,), (3,)), state_dtypes=(None, torch.float32))
    if kind == "latent":
        return LatentCacheSpec(size=2 * WIDTH)
    spans = {kind: span} if kind in ("window", "chunk") else {}
    return KVCacheSpec(num_kv_heads=HEADS, head_size=SIZE, value_size=SIZE, **spans)


MODELS = {
    "windows": [("window", 6), ("full", 0), ("window", 6), ("window", 6)],
    "windows alone": [("window", 7), ("window", 11)],
    "chunks": [("chunk", 8), ("full", 0)],
    "latents": [("latent", 0), ("latent", 0)],
    "states alone": [("state", 0), ("state", 0)],
    "hybrid": [("state", 0), ("full", 0), ("state", 0), ("state", 0)],
    "everything": [("state", 0), ("window", 9), ("latent", 0), ("chunk", 12), ("full", 0), ("state", 0)],
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class ToyWorker:
    """As the engine's worker after `allocate_kv`."""

    def __init__(self, runner):
        self.runner = runner

    def execute(self, plan):
        return self.runner.launch(plan)

    def step_counts(self):
        return {"graph": self.runner.num_graph_steps, "eager": self.runner.num_eager_steps}


class Engine:
    """A toy model in the real core."""

    def __init__(self, mixers, *, num_pages, graphs=None, overlap=False, host_blocks=0, max_num_seqs=10):
        specs = [cache_of(kind, span) for kind, span in mixers]
        options = LayoutOptions(
            dtype=torch.float64, block_size=BLOCK, max_tokens=MAX_LEN, state_interval=INTERVAL
        )
        self.layout = layout = choose_layout(specs, options)
        self.model = ToyModel(mixers, layout)
        pool = allocate_pool(specs, layout, num_pages, torch.float64, torch.device("cpu"))
        runner = ModelRunner(
            self.model,
            pool,
            layout,
            num_slots=max_num_seqs,
            max_model_len=MAX_LEN,
            host_blocks=host_blocks,
        )
        if graphs is not None:
            runner.use_graphs(graphs, memory_bytes=10**6)
        self.cache = KVCache(
            [group.for_cache() for group in layout.groups], num_pages, host_blocks=host_blocks
        )
        config = SchedulerConfig(max_model_len=MAX_LEN, max_num_seqs=max_num_seqs, max_num_batched_tokens=23)
        executor = InProcessExecutor(lambda mesh: ToyWorker(runner))
        executor.start()
        info = CoreInfo(
            tokenizer_path=None,
            max_model_len=MAX_LEN,
            vocab_size=VOCAB,
            eos_token_ids=[],
            num_blocks=num_pages,
            block_size=layout.alignment,
            device="cpu",
            dtype="float64",
            overlap=overlap,
            prefix_caching=True,
        )
        self.core = EngineCore(TokenBudgetScheduler(config, self.cache), self.cache, executor, info)

    def run(self, requests):
        """Tokens and cached tokens by request; `requests` are (prompt, number of tokens) by name."""
        self.core.intake([request(name, *wanted) for name, wanted in requests.items()])
        tokens, cached = {}, {}
        while self.core.has_work():
            outputs = self.core.step()
            assert not outputs.refusals
            for row in outputs.rows:
                assert row.error is None, row.error
                tokens.setdefault(row.request_id, []).extend(row.tokens)
                cached[row.request_id] = row.num_cached_tokens
            self.cache.check()
        return tokens, cached

    def expected(self, requests):
        return {name: self.model.next_tokens(*wanted) for name, wanted in requests.items()}


def request(name, prompt, num_tokens):
    return AddRequest(
        request_id=name,
        token_ids=np.asarray(prompt, "<i4").tobytes(),
        max_tokens=num_tokens,
        min_tokens=0,
        stop_token_ids=[],
        priority=0,
        match_prefix=True,
        params=RowParams(seed=0, temperature=0.0),
    )


def random_requests(seed, count):
    """Some prompts begin alike, so that there are hits at different lengths; some rows outgrow the pool."""
    rng = random.Random(seed)
    stems = [rng.choices(range(VOCAB), k=length) for length in (12, 27)]
    requests = {}
    for index in range(count):
        stem = stems[index % 2][: rng.choice([9, 17, 27])] if index < count // 2 else []
        prompt = stem + rng.choices(range(VOCAB), k=rng.randrange(1, 9))
        requests[str(index)] = (prompt, rng.randrange(1, 28) if stem else rng.randrange(30, 50))
    return requests


@functools.cache
def expected_tokens(name):
    """Of the random requests, for the model of that name."""
    model = ToyModel(MODELS[name], None)
    return {key: model.next_tokens(*wanted) for key, wanted in random_requests(1, 14).items()}


@pytest.mark.parametrize(
    ("graphs", "overlap"), [(False, False), (True, True)], ids=["eager, plain", "as graphs, overlapped"]
)
@pytest.mark.parametrize("name", MODELS)
def test_tokens_do_not_depend_on_the_cache(name, graphs, overlap, uncaptured):
    num_pages = Engine(MODELS[name], num_pages=1000).layout.pages(MAX_LEN)
    engine = Engine(MODELS[name], num_pages=num_pages, graphs=uncaptured if graphs else None, overlap=overlap)
    requests = random_requests(1, 14)
    for _ in range(2):
        tokens, _ = engine.run(requests)
        assert tokens == expected_tokens(name)
    stats = engine.core.stats()
    assert stats.preemptions > 0
    assert (stats.graph_steps > 0) == graphs
    assert stats.kv_blocks_used == 0


@pytest.mark.parametrize("name", MODELS)
def test_a_prefix_is_found_again(name):
    engine = Engine(MODELS[name], num_pages=400)
    prompt = random.Random(3).choices(range(VOCAB), k=40)
    engine.run({"first": (prompt, 4)})
    requests = {"same": (prompt, 6), "longer": ([*prompt[:39], 1, 2, 3], 6), "other": (prompt[1:], 3)}
    tokens, cached = engine.run(requests)
    assert tokens == engine.expected(requests)
    alignment = engine.layout.alignment
    assert cached == {"same": 39 // alignment * alignment, "longer": 39 // alignment * alignment, "other": 0}


@pytest.mark.parametrize("name", ["windows", "states alone", "hybrid", "everything"])
def test_pages_come_back_from_the_host(name):
    mixers = MODELS[name]
    layout = Engine(mixers, num_pages=1000).layout
    engine = Engine(mixers, num_pages=layout.pages(MAX_LEN), host_blocks=1000, max_num_seqs=3)
    rng = random.Random(5)
    requests = {str(index): (rng.choices(range(VOCAB), k=40), 9) for index in range(6)}
    expected = engine.expected(requests)
    assert engine.run(requests)[0] == expected
    tokens, _ = engine.run({f"again {name}": wanted for name, wanted in requests.items()})
    assert tokens == {f"again {name}": value for name, value in expected.items()}
    assert engine.cache.stats().host_hits > 0
