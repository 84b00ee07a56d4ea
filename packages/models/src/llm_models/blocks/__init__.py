"""What layers consist of: one file a kind of block, with its data, parameters and runtime."""
