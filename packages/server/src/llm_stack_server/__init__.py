"""OpenAI-compatible server and command line for LLM Stack."""
