"""The parity test of model architectures: tiny random models here against transformers."""
