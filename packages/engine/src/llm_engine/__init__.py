"""The inference engine: LLM, AsyncLLM and the core that runs them."""
