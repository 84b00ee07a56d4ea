"""Step planning for continuously batched LLM inference, without torch."""
