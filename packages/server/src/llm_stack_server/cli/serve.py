"""``llm-stack serve``: the flags of server and engine, then the run."""

from __future__ import annotations

import argparse

from llm_engine.options import EngineOptions

from llm_stack_server.cli.config_file import add_config_flag, read_config, require_model
from llm_stack_server.cli.flags import add_flags, from_flags
from llm_stack_server.settings import ServerSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the model and all flags."""
    parser.add_argument(
        "model",
        nargs="?",
        default=argparse.SUPPRESS,
        help="an alias such as smollm2, a folder with safetensors, or a .gguf file",
    )
    add_config_flag(parser)
    add_flags(parser, ServerSettings)
    add_flags(parser, EngineOptions, skip={"model"})


def run(parsed: argparse.Namespace) -> int:
    """Check the options, then serve."""
    read_config(parsed)
    require_model(parsed)
    settings = from_flags(ServerSettings, parsed)
    options = from_flags(EngineOptions, parsed)
    from llm_stack_server.serve import serve  # only with good options: the web stack takes a moment to import

    return serve(settings, options)
