"""What a worker is told at start and what it tells back after loading; knows nothing of requests."""

from __future__ import annotations

from typing import Literal

import msgspec

from llm_engine.worker.kv_groups import KVLayout


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the engine's options a worker needs; msgpack-able.

    Attributes:
        model: Alias, folder or file, as `llm_models.resolve` takes it.
        dtype: "auto" (the checkpoint's on a GPU, float32 on a CPU) or a torch dtype name such as "bfloat16".
        device: "auto", "cpu", "cuda" or "cuda:N"; a bare "cuda" becomes the rank's own device.
        load_format: "auto" or "dummy".
        quantization: "fp8" quantizes the linear layers while they are loaded; None: as the files have them.
        max_model_len: Longest sequence in tokens; None takes the model's own limit.
        block_size: Tokens in a KV block.
        gpu_memory_fraction: Share of the device's memory that the engine may use in all.
        kv_cache_dtype: "auto" (the model's) or "fp8": number format of keys and values in the cache.
        kv_cache_bytes: Size of the KV cache; None sizes it by the rule of `kv_sizing`.
        max_num_seqs: Number of slots.
        max_num_batched_tokens: Most tokens in a step.
        prefix_caching: Whether full blocks are found again; without it recurrent states need no checkpoints.
        state_interval: Tokens from one checkpoint of recurrent states to the next, a multiple of
            `block_size`; None: chosen by the states' size.
        tokenizer: File or folder of the tokenizer, for grammars; None: the model has none.
        eos_token_ids: The tokens that end an output.
        grammar_backend: Compiles the grammars that name no back end.
        sampled_vocab_size: Ids at and above it are never drawn (a vocabulary padded in the model); None: no
            limit.
        deterministic: Results of a row do not depend on the batch.
        graphs: "auto" (full on CUDA, piecewise where that fails), "none", "piecewise" or "full": capture
            decode steps as CUDA graphs.
        graph_memory_gib: Device memory set aside for them.
        offline: Do not ask a hub.
        allow_pickle: Read weights from pickle files.
        trust_remote_code: Run model code that the checkpoint holds.
        threads: torch threads on a CPU; None leaves torch's choice.
        kernel_cache: Folder of compiled Triton kernels; None: see `kernel_cache`.
        progress: Show a progress bar while loading.
    """

    model: str
    dtype: str = "auto"
    device: str = "auto"
    load_format: str = "auto"
    quantization: Literal["fp8"] | None = None
    max_model_len: int | None = None
    block_size: int = 16
    gpu_memory_fraction: float = 0.9
    kv_cache_dtype: str = "auto"
    kv_cache_bytes: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    prefix_caching: bool = True
    state_interval: int | None = None
    tokenizer: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    grammar_backend: str = "llguidance"
    sampled_vocab_size: int | None = None
    deterministic: bool = False
    graphs: str = "auto"
    graph_memory_gib: float = 1.0
    offline: bool = False
    allow_pickle: bool = False
    trust_remote_code: bool = False
    threads: int | None = None
    kernel_cache: str | None = None
    progress: bool = False


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, tag="ModelInfo"):
    """What `Worker.load` found.

    Attributes:
        architecture: The architecture's name, as the checkpoint states it.
        vocab_size: Width of the logits.
        max_model_len: The limit in force: the configured one, or the model's.
        model_max_len: The model's own limit, in tokens.
        kv_layout: The KV groups and the bytes of a page, on this rank.
        num_parameters: Parameters on this rank.
        dtype: The torch dtype's name in force.
        device: The device in force.
        load_s: Seconds that loading took.
    """

    architecture: str
    vocab_size: int
    max_model_len: int
    model_max_len: int
    kv_layout: KVLayout
    num_parameters: int
    dtype: str
    device: str
    load_s: float
