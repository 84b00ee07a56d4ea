"""Device mesh, collectives and executors for LLM inference."""
