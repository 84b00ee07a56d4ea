"""Owns the ways to fill a decoder's parameters: safetensors, GGUF and random numbers."""
