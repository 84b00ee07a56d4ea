"""Owns what the model tests share: tiny transformers models, and a runner over randomly placed blocks."""

import warnings
from dataclasses import dataclass, field

import pytest
import torch
import transformers
from llm_kernels.ops import AttentionMetadata
from llm_models import Decoder

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "attn_implementation": "eager",
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "pad_token_id": 0,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.5}

# name: (architecture, what differs from SHAPE)
CASES: dict[str, tuple[str, dict]] = {
    "llama": ("Llama", {}),
    "llama-mha-tied": ("Llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3-rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-yarn-rope": ("Llama", {"rope_parameters": YARN}),
    "llama-linear-rope": ("Llama", {"rope_parameters": LINEAR}),
    "llama-wide-heads-gelu": ("Llama", {"head_dim": 16, "hidden_act": "gelu_pytorch_tanh"}),
    "mistral-window": ("Mistral", {"sliding_window": 6}),
    "mistral-no-window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2-some-layers-windowed": (
        "Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-tied": ("Qwen3", {"head_dim": 8, "tie_word_embeddings": True}),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def cases() -> dict[str, tuple[str, dict]]:
    return CASES


@pytest.fixture(scope="session")
def make_reference():
    """Builds a seeded transformers model; norms and biases are random too, so that leaving one out shows."""

    def make(case: str = "llama", seed: int = 0, **changes) -> transformers.PreTrainedModel:
        name, differs = CASES[case]
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            config = getattr(transformers, f"{name}Config")(**(SHAPE | differs | changes))
            model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.2)
        return model

    return make


@dataclass
class PagedRun:
    """Runs steps over sequences whose blocks lie at random places of the cache."""

    decoder: Decoder
    block_size: int = 4
    num_blocks: int = 96
    seed: int = 0
    blocks: dict[str, list[int]] = field(default_factory=dict)
    computed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.caches = self.decoder.allocate_caches(self.num_blocks, self.block_size)
        # What a reader must never see: the cache starts full of wrong numbers.
        for cache in (item for pair in self.caches for item in pair):
            cache.fill_(37.0)
        order = torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(self.seed))
        self.free = order.tolist()

    def step(self, rows: dict[str, list[int]]) -> dict[str, torch.Tensor]:
        """Runs the next tokens of each row; returns the logits [n, V] of each row's tokens."""
        names = sorted(rows, key=lambda name: len(rows[name]) > 1)
        positions, slots, ids = [], [], []
        for name in names:
            start = self.computed.get(name, 0)
            mine = range(start, start + len(rows[name]))
            table = self.blocks.setdefault(name, [])
            while len(table) * self.block_size < mine.stop:
                table.append(self.free.pop())
            positions += mine
            slots += [table[p // self.block_size] * self.block_size + p % self.block_size for p in mine]
            ids += rows[name]
            self.computed[name] = mine.stop
        hidden = self.decoder.forward(
            torch.tensor(ids),
            [self._metadata(names, rows, positions, slots)] * len(self.caches),
            self.caches,
        )
        logits = self.decoder.logits(hidden)
        assert logits.dtype == torch.float32
        return dict(zip(names, logits.split([len(rows[name]) for name in names]), strict=True))

    def greedy(self, name: str, prompt: list[int], count: int) -> list[int]:
        """Generates `count` tokens for one sequence, alone."""
        produced, last = [], prompt
        for _ in range(count):
            last = [int(self.step({name: last})[name][-1].argmax())]
            produced += last
        return produced

    def _metadata(self, names, rows, positions, slots) -> AttentionMetadata:
        lengths = [len(rows[name]) for name in names]
        contexts = [self.computed[name] for name in names]
        width = max(len(self.blocks[name]) for name in names)
        tables = [self.blocks[name] + [0] * (width - len(self.blocks[name])) for name in names]
        ends = torch.tensor([0, *lengths]).cumsum(0)
        return AttentionMetadata(
            cu_query_lens=ends.to(torch.int32),
            context_lens=torch.tensor(contexts, dtype=torch.int32),
            block_tables=torch.tensor(tables, dtype=torch.int32),
            slot_mapping=torch.tensor(slots),
            positions=torch.tensor(positions),
            num_decodes=sum(length == 1 for length in lengths),
            max_query_len=max(lengths),
            max_context_len=max(contexts),
        )


@pytest.fixture
def paged_run():
    return PagedRun
