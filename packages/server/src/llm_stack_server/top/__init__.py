"""`llm-stack top`: reads a running server's metrics and shows them in a terminal."""
