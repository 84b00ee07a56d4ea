"""OpenAI-compatible server and command line for LLM Stack; speaks to `llm_engine` only."""

__all__: list[str] = []
