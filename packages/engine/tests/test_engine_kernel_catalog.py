"""What front ends are told of kernels and tokenizers agrees with what `llm_kernels` and the engine take."""

import torch
from llm_engine.kernel_catalog import kernel_choices, library_path
from llm_engine.model_tokenizer import tokenizer_of
from llm_kernels.ops import describe_backends, selected


def test_choices_are_those_of_the_kernels():
    choices = kernel_choices("cpu")
    assert {choice.op for choice in choices} == {status.op for status in describe_backends()}
    for choice in choices:
        if choice.backend is not None:
            assert choice.backend == selected(choice.op, "cpu", torch.float32)


def test_what_cannot_run_has_a_reason():
    unavailable = {(status.op, status.backend) for status in describe_backends() if not status.available}
    for choice in kernel_choices("cuda"):
        for backend, reason in choice.passed_over:
            assert (choice.op, backend) in unavailable
            assert reason


def test_the_library_is_there_exactly_where_its_kernels_load():
    loads = any(status.available for status in describe_backends() if status.backend == "cpp")
    assert (library_path("cpu") is not None) == loads


def test_the_tokenizer_is_found_without_the_model():
    tokenizer = tokenizer_of("smollm2", offline=True)
    assert tokenizer.decode(tokenizer.encode("Hello there")) == "Hello there"
