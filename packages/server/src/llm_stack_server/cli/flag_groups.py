"""Under which titles the help shows the options of server and engine. Knows nothing of what they do."""

from __future__ import annotations

from collections.abc import Mapping

# Options that no group names are shown under the class's own title.
FLAG_GROUPS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "ServerSettings": {
        "address and log": ("host", "port", "grpc_port", "log_level", "access_log", "drain_timeout_s"),
        "traces": ("otlp_traces_endpoint", "traces_sample_ratio"),
        "processes": ("api_workers", "max_worker_deaths", "max_core_deaths"),
        "who may ask": (
            "api_key",
            "api_key_file",
            "isolate_cache_by_key",
            "allow_open",
            "tls_cert",
            "tls_key",
            "tls_client_ca",
            "cors_origin",
            "allowed_host",
        ),
        "answers": (
            "served_model_name",
            "web_page",
            "mcp",
            "mcp_server",
            "output_format",
            "any_dimensions",
            "strict",
        ),
        "limits of one client": (
            "max_body_bytes",
            "body_timeout_s",
            "max_request_s",
            "max_stream_buffer_bytes",
            "stream_stall_s",
            "max_requests_per_key",
            "requests_per_minute",
            "tokens_per_minute",
        ),
        "limits of all clients": (
            "max_concurrent_requests",
            "max_queued_requests",
            "max_queued_tokens",
            "max_stored_responses",
            "max_stored_response_bytes",
        ),
    },
    "EngineOptions": {
        "model": (
            "model",
            "tokenizer",
            "dtype",
            "quantization",
            "max_model_len",
            "load_format",
            "offline",
            "allow_pickle",
            "trust_remote_code",
        ),
        "device": (
            "device",
            "tensor_parallel_size",
            "threads",
            "graphs",
            "graph_memory_gib",
            "overlap",
            "kernel_cache",
            "worker",
        ),
        "cache": (
            "gpu_memory_fraction",
            "kv_cache_bytes",
            "kv_cache_dtype",
            "host_cache_gib",
            "block_size",
            "state_interval",
            "enable_prefix_caching",
            "pinned_cache_share",
            "pinned_cache_share_per_tenant",
            "eviction_policy",
        ),
        "scheduling": (
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_waiting_requests",
            "max_waiting_tokens",
            "policy",
            "long_prefill_share",
            "long_prompt_tokens",
            "scheduler",
            "record_plans",
        ),
        "sampling of the engine": ("deterministic", "seed", "grammar_backend"),
        "what is shown": ("progress", "profile_start"),
    },
}
