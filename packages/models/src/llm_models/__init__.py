"""Decoders as declarative specs, with safetensors and GGUF loading."""
