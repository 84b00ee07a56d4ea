"""Owns the engine core: the step loop, its process and the messages to it; knows nothing of text."""
