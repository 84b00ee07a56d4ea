"""Reads what a model writes into text, reasoning and tool calls, piece by piece. Knows nothing of HTTP."""
