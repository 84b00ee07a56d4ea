"""Fast encode, batched incremental detokenize, stop strings and chat templates, without torch."""
