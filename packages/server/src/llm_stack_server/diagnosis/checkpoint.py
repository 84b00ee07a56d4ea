"""A checkpoint: would it load and fit, how does it tokenize and write calls. Loads no weights."""

from __future__ import annotations

from collections.abc import Iterator

from llm_tokenizer import TokenizerFileError

from llm_stack_server.diagnosis.finding import Finding
from llm_stack_server.diagnosis.host import available_bytes
from llm_stack_server.output_formats.formats import format_of_template

_GIB = 2**30
_FLOAT32_SHARE = 2  # the CPU runs 16-bit weights as float32


def look_at_model(model: str, *, offline: bool) -> Iterator[Finding]:
    """What stands for and against serving ``model`` here."""
    from llm_engine.model_catalog import ModelError, check_checkpoint

    try:
        report = check_checkpoint(model, offline=offline)
    except ModelError as error:
        yield _broken("checkpoint", str(error), "see llm-stack models check")
        return
    yield Finding(
        section="model",
        name="architecture",
        value=f"{report.architecture} ({report.standing}, {report.kind})",
    )
    if report.problem is not None:
        yield _broken("checkpoint", report.problem, "see llm-stack models check")
        return
    yield Finding(section="model", name="checkpoint", value="would load")
    if report.num_parameters:
        yield _weights(report.weight_bytes, report.num_parameters)
    yield from _look_at_text(model, offline=offline, needs_text=report.kind == "decoder")


def _weights(num_bytes: int, num_parameters: int) -> Finding:
    import torch

    value = f"{num_bytes / _GIB:.2f} GiB, {num_parameters:,} parameters"
    if torch.cuda.is_available():
        free = max(torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count()))
        place, need = "the emptiest GPU", num_bytes
        advice = "share it out with --tensor-parallel-size; see llm-stack plan"
    else:
        found = available_bytes()
        if found is None:
            return Finding(section="model", name="weights", value=value)
        free, place, need = found, "memory, as float32", num_bytes * _FLOAT32_SHARE
        advice = "try --dtype bfloat16, or a machine with more memory"
    if need > free:
        told = f"{value}: {need / _GIB:.2f} GiB do not fit into {free / _GIB:.2f} GiB of {place}"
        return Finding(section="model", name="weights", value=told, level="warning", advice=advice)
    return Finding(section="model", name="weights", value=f"{value}; fits into {place}")


def _look_at_text(model: str, *, offline: bool, needs_text: bool) -> Iterator[Finding]:
    from llm_engine.model_tokenizer import tokenizer_of

    try:
        tokenizer = tokenizer_of(model, offline=offline)
    except TokenizerFileError as error:
        yield _broken("tokenizer", str(error), "name one with --tokenizer")
        return
    tokenizer.encode("ready")  # the path is chosen at the first use
    if tokenizer.encode_path == "fast":
        yield Finding(section="model", name="tokenizer", value=f"{tokenizer.vocab_size:,} tokens, fast path")
    else:
        yield Finding(
            section="model",
            name="tokenizer",
            value=f"{tokenizer.vocab_size:,} tokens, by the tokenizers library: {tokenizer.library_reason}",
        )
    template = tokenizer.chat_template
    if template is None:
        yield Finding(
            section="model",
            name="chat template",
            value="none",
            level="warning" if needs_text else "ok",
            advice="chat routes answer 400; completions work" if needs_text else "",
        )
        return
    output_format = format_of_template(template)
    told = (
        "none shown: all is text" if output_format is None else f"{output_format.name} (--output-format auto)"
    )
    yield Finding(section="model", name="chat template", value=f"{len(template):,} characters")
    yield Finding(section="model", name="tools and reasoning", value=told)


def _broken(name: str, value: str, advice: str) -> Finding:
    return Finding(section="model", name=name, value=value, level="broken", advice=advice)
