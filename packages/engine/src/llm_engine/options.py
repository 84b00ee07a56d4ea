"""Owns the engine's options, their ranges and help texts; knows nothing of command lines."""

import difflib
import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypeVar

from llm_kvcache import installed_policies as installed_eviction_policies
from llm_scheduler import installed_policies

from llm_engine.errors import InvalidOption
from llm_engine.grammar.spec import BACKENDS

DTYPES = ("auto", "float32", "bfloat16", "float16")
LOAD_FORMATS = ("auto", "dummy")
QUANTIZATIONS = ("fp8",)
KV_CACHE_DTYPES = ("auto", "fp8")
GRAPHS = ("auto", "none", "piecewise", "full")

_T = TypeVar("_T")


def _option(default: _T, help_text: str, choices: tuple[str, ...] | None = None) -> _T:
    """A dataclass field whose metadata the server turns into a command line flag."""
    metadata: dict[str, Any] = {"help": help_text}
    if choices is not None:
        metadata["choices"] = choices
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What an engine runs and with which resources. `metadata["help"]` of each field says what it does.

    Raises:
        InvalidOption: A value has the wrong type or lies outside its range; the field is named.
    """

    model: str = field(
        metadata={"help": 'An alias such as "smollm2", a folder with safetensors, or a .gguf file.'}
    )
    tokenizer: str | None = _option(None, "Tokenizer file or folder; by default the model's own.")
    dtype: str = _option(
        "auto",
        "Type of the weights. auto: bfloat16 on CUDA, float32 on the CPU (bfloat16 is slow there).",
        DTYPES,
    )
    device: str = _option("auto", '"cpu", "cuda", "cuda:N" or "auto": CUDA where there is one.')
    load_format: str = _option(
        "auto", "auto: read the weights. dummy: random weights, for benchmarks.", LOAD_FORMATS
    )
    quantization: str | None = _option(
        None,
        "fp8: linear layers get 8-bit weights (e4m3, a scale an output) while they are loaded. By default "
        "weights stay as the checkpoint has them; FP8 checkpoints load as FP8 either way.",
        QUANTIZATIONS,
    )
    max_model_len: int | None = _option(
        None,
        "Longest context (prompt and output) in tokens; by default the model's own.",
    )
    block_size: int = _option(16, "Tokens in one KV-cache block, a power of two from 1 to 256.")
    state_interval: int | None = _option(
        None,
        "Tokens between kept copies of recurrent states, from which prefix hits go on: a multiple of "
        "block_size. By default what the size of the states makes worth it.",
    )
    tensor_parallel_size: int = _option(
        1, "Devices that share each layer of the model, one process each; more than 1 on one host."
    )
    offline: bool = _option(
        False, "Take models from local folders and the hub's cache only; HF_HUB_OFFLINE=1 does the same."
    )
    allow_pickle: bool = _option(False, "Read weights from pickle files (.bin), without running their code.")
    trust_remote_code: bool = _option(
        False, "Run Python code that the checkpoint holds. Only for sources that you trust."
    )
    gpu_memory_fraction: float = _option(
        0.9, "Share of the device's memory for weights, activations and cache; above 0, up to 1."
    )
    kv_cache_dtype: str = _option(
        "auto",
        "fp8: keys and values take one byte each (e4m3), so that the cache holds twice as much and attention "
        "reads half. auto: the model's number format.",
        KV_CACHE_DTYPES,
    )
    kv_cache_bytes: int | None = _option(
        None, "Bytes of KV cache; by default what gpu_memory_fraction leaves, on the CPU a fixed budget."
    )
    host_cache_gib: float = _option(
        0.0,
        "GiB of host memory for KV blocks evicted from the device: cached prefixes and preempted requests "
        "come back from there; 0 for none.",
    )
    max_num_seqs: int = _option(256, "Requests that may run at the same time.")
    max_num_batched_tokens: int | None = _option(
        None, "Token budget of a step; by default 8192 on CUDA and 1024 on the CPU."
    )
    worker: str = _option(
        "default",
        "What runs the steps: module:factory of a worker in place of the model's, for tests and benchmarks.",
    )
    scheduler: str = _option("default", "Scheduler: an entry-point name or module:Class.")
    policy: str = _option(
        "fcfs",
        "Order of requests: fcfs, priority, fair, deadline, prefix, an entry-point name or module:Class.",
    )
    long_prefill_share: float | None = _option(
        None,
        "Most of a step's tokens for long prompts while others want some, above 0 to 1; by default all.",
    )
    long_prompt_tokens: int = _option(
        2048, "For long_prefill_share: a prompt with more tokens left to compute is long."
    )
    eviction_policy: str = _option(
        "lru",
        "KV blocks to evict first: lru, lfu, priority+ttl, cost, an entry-point name or module:Class.",
    )
    enable_prefix_caching: bool = _option(True, "Reuse the KV cache of equal prompt beginnings.")
    pinned_cache_share: float = _option(
        0.5, "Share of the KV cache that pinned prompt beginnings (cache_control) may hold, 0 to 1."
    )
    pinned_cache_share_per_tenant: float = _option(0.25, "The same of one tenant, such as an API key.")
    overlap: bool | None = _option(
        None,
        "Plan the next step while the device runs one; by default on for CUDA, off for the CPU.",
    )
    graphs: str = _option(
        "auto",
        "CUDA graphs of the decode steps. full: whole steps. piecewise: what lies between attentions. auto: "
        "full on CUDA, piecewise where that fails, none on the CPU. none: launch every kernel.",
        GRAPHS,
    )
    graph_memory_gib: float = _option(
        1.0, "GiB of device memory set aside for CUDA graphs; when they have taken so much, none is added."
    )
    deterministic: bool = _option(
        False,
        "Bitwise equal tokens and logprobs of a request whatever else runs, however its prompt is cut into "
        "steps, with or without cache hits; slower. A request without a seed takes the engine's. One device.",
    )
    grammar_backend: str = _option(
        "llguidance",
        "What enforces schemas, regular expressions and grammars where a request names nothing. xgrammar "
        "is an extra.",
        BACKENDS,
    )
    seed: int = _option(0, "Seed of the generator that gives requests without a seed of their own one.")
    max_waiting_requests: int = _option(4096, "Requests that may wait; more are refused.")
    max_waiting_tokens: int = _option(8_388_608, "Prompt tokens that may wait; more are refused.")
    record_plans: str | None = _option(
        None,
        "File to record every scheduling decision in, for python -m llm_scheduler.replay; compressed if it "
        "ends in .gz. It holds the token ids of all prompts and outputs.",
    )
    threads: int | None = _option(None, "CPU threads of the core; by default torch's choice.")
    kernel_cache: str | None = _option(
        None,
        "Folder that keeps compiled Triton kernels for later starts; by default what TRITON_CACHE_DIR names, "
        "else llm-stack/triton in the user's cache folder.",
    )
    profile_start: bool = _option(
        False, "Print on standard error where the seconds of the start went, up to the first token."
    )
    progress: bool = _option(True, "Show progress bars while loading.")

    def __post_init__(self) -> None:
        self._check_texts()
        self._check_counts()
        self._check_block_size()
        self._check_fraction()
        self._check_host_cache()
        self._check_graph_memory()
        self._check_policies()
        for name in (
            "deterministic",
            "enable_prefix_caching",
            "offline",
            "allow_pickle",
            "trust_remote_code",
            "profile_start",
            "progress",
        ):
            if not isinstance(getattr(self, name), bool):
                raise InvalidOption(name, f"must be true or false, got {getattr(self, name)!r}")
        if self.deterministic and self.tensor_parallel_size > 1:
            reason = "needs tensor_parallel_size 1: the order of sums over devices depends on their size"
            raise InvalidOption("deterministic", reason)
        if self.overlap is not None and not isinstance(self.overlap, bool):
            raise InvalidOption("overlap", f"must be true, false or None, got {self.overlap!r}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Options from names and values, as keywords or a configuration file give them.

        Raises:
            InvalidOption: A name is unknown, "model" is missing, or a value is out of range.
        """
        known = {entry.name for entry in fields(cls)}
        for name in values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise InvalidOption(name, "unknown option" + (f"; did you mean {near[0]}?" if near else ""))
        if "model" not in values:
            raise InvalidOption("model", "must be given")
        return cls(**values)

    def _check_texts(self) -> None:
        for name in ("model", "device", "worker", "scheduler", "policy", "eviction_policy"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise InvalidOption(name, f"must be a non-empty string, got {value!r}")
        for name in ("tokenizer", "record_plans", "kernel_cache"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidOption(name, f"must be a non-empty string or None, got {value!r}")
        listed = {
            "dtype": DTYPES,
            "load_format": LOAD_FORMATS,
            "kv_cache_dtype": KV_CACHE_DTYPES,
            "graphs": GRAPHS,
            "grammar_backend": BACKENDS,
        }
        for name, choices in listed.items():
            if getattr(self, name) not in choices:
                raise InvalidOption(name, f"must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        if self.grammar_backend == "xgrammar" and importlib.util.find_spec("xgrammar") is None:
            raise InvalidOption(
                "grammar_backend", "xgrammar is not installed: pip install llm-stack-engine[xgrammar]"
            )
        if self.quantization is not None and self.quantization not in QUANTIZATIONS:
            known = ", ".join(QUANTIZATIONS)
            raise InvalidOption("quantization", f"must be one of {known} or None, got {self.quantization!r}")
        kind, _, index = self.device.partition(":")
        indexed = ":" in self.device
        if kind not in ("auto", "cpu", "cuda") or (indexed and not (kind == "cuda" and index.isdecimal())):
            raise InvalidOption("device", f'must be "auto", "cpu", "cuda" or "cuda:N", got {self.device!r}')

    def _check_counts(self) -> None:
        ranges = {
            "max_model_len": (1, 2**31 - 1),
            "state_interval": (1, 2**30),
            "tensor_parallel_size": (1, 1024),
            "kv_cache_bytes": (1, 2**63 - 1),
            "max_num_seqs": (1, 65_536),
            "long_prompt_tokens": (1, 2**31 - 1),
            "max_num_batched_tokens": (1, 1_048_576),
            "seed": (-(2**63), 2**63 - 1),
            "max_waiting_requests": (1, 2**31 - 1),
            "max_waiting_tokens": (1, 2**63 - 1),
            "threads": (1, 4096),
        }
        optional = {"max_model_len", "state_interval", "kv_cache_bytes", "max_num_batched_tokens", "threads"}
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if value is None and name in optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise InvalidOption(name, f"must be an integer from {low} to {high}, got {value!r}")

    def _check_block_size(self) -> None:
        size = self.block_size
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 256 or size & (size - 1):
            raise InvalidOption("block_size", f"must be a power of two from 1 to 256, got {size!r}")
        if self.state_interval is not None and self.state_interval % size:
            raise InvalidOption("state_interval", f"must be a multiple of {size}, got {self.state_interval}")

    def _check_policies(self) -> None:
        """Whether the names lead to something; what `module:Class` leads to is seen at the start."""
        known = {"policy": installed_policies(), "eviction_policy": installed_eviction_policies()}
        for name, choices in known.items():
            value = getattr(self, name)
            if value not in choices and ":" not in value:
                expected = f"must be one of {', '.join(choices)}, or module:Class"
                raise InvalidOption(name, f"{expected}, got {value!r}")

    def _check_host_cache(self) -> None:
        value = self.host_cache_gib
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidOption("host_cache_gib", f"must be a finite number, got {value!r}")
        if not 0 <= value <= 65_536:
            raise InvalidOption("host_cache_gib", f"must be from 0 to 65536, got {value!r}")
        if value and not self.enable_prefix_caching:
            raise InvalidOption("host_cache_gib", "needs enable_prefix_caching")

    def _check_graph_memory(self) -> None:
        value = self.graph_memory_gib
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1024:
            raise InvalidOption("graph_memory_gib", f"must be a number from 0 to 1024, got {value!r}")

    def _check_fraction(self) -> None:
        value = self.gpu_memory_fraction
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidOption("gpu_memory_fraction", f"must be a finite number, got {value!r}")
        if not 0 < value <= 1:
            raise InvalidOption("gpu_memory_fraction", f"must be above 0 and at most 1, got {value!r}")
        for name in ("pinned_cache_share", "pinned_cache_share_per_tenant"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise InvalidOption(name, f"must be from 0 to 1, got {value!r}")
        share = self.long_prefill_share
        if share is None:
            return
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            raise InvalidOption("long_prefill_share", f"must be above 0 and at most 1, got {share!r}")
