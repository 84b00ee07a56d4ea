"""Batch files in OpenAI's format: a file of requests in, a file of answers out. Knows nothing of engines."""
