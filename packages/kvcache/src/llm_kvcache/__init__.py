"""Paged KV-cache block pool and prefix cache for LLM inference, in Rust, without torch."""
