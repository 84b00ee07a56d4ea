"""Owns the names of activations: ours, and those of Hugging Face configs."""

from collections.abc import Mapping
from typing import Literal

Activation = Literal[
    "silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "sigmoid", "tanh", "identity", "xielu"
]

HF_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "linear": "identity",
}
