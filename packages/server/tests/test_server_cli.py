"""Flags, the conversation loop and the streaming of text, without a model."""

from __future__ import annotations

import argparse
import asyncio
import io
import sys
from dataclasses import dataclass, field

import pytest
from llm_engine.options import EngineOptions
from llm_engine.sampling_params import SamplingParams
from llm_stack_server.cli import chat, main
from llm_stack_server.cli.flags import add_flags, from_flags
from llm_stack_server.settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class Sample:
    text: str = "a"
    maybe: int | None = None
    share: float = 0.5
    on: bool = True
    third: bool | None = None
    many: tuple[str, ...] = ()
    pick: str = field(default="x", metadata={"help": "100% of it", "choices": ("x", "y")})


def parse(options: type, *arguments: str) -> object:
    parser = argparse.ArgumentParser()
    add_flags(parser, options)
    parser.format_help()
    return from_flags(options, parser.parse_args(arguments))


def test_flags_follow_the_fields():
    assert parse(Sample) == Sample()
    arguments = [
        "--text",
        "b",
        "--maybe",
        "3",
        "--share",
        "1",
        "--no-on",
        "--third",
        "--many",
        "p",
        "--many",
        "q",
    ]
    expected = Sample(text="b", maybe=3, share=1.0, on=False, third=True, many=("p", "q"), pick="y")
    assert parse(Sample, *arguments, "--pick", "y") == expected
    for bad in (["--maybe", "x"], ["--pick", "z"], ["--unknown"]):
        with pytest.raises(SystemExit):
            parse(Sample, *bad)


def test_every_option_is_a_flag():
    assert parse(ServerSettings) == ServerSettings()
    assert parse(EngineOptions, "--model", "m", "--no-enable-prefix-caching") == EngineOptions(
        model="m", enable_prefix_caching=False
    )


def test_expected_errors_are_one_line(capsys):
    assert main(["serve", "smollm2", "--port", "70000"]) == 1
    assert main(["generate", "hi", "--top-p", "7"]) == 1
    assert main(["generate", ""]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[2].strip() for line in lines] == ["port", "top_p", "prompt"]
    assert all(line.startswith("llm-stack: error: ") for line in lines)


def converse(engine, text: str, monkeypatch, system: str | None = None) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    with asyncio.Runner() as runner:
        chat.Conversation(runner, engine, SamplingParams(temperature=0.0), system).loop()


def test_a_conversation_keeps_its_turns(engine, monkeypatch, capsys):
    engine.script = "Hi."
    converse(engine, "one\n\ntwo\n/reset\nthree\n/exit\nfour\n", monkeypatch, system="S")
    prompts = [bytes(prompt).decode() for prompt, _, _ in engine.seen]
    assert prompts == [
        "[system]S\n[user]one\n[assistant]",
        "[system]S\n[user]one\n[assistant]Hi.\n[user]two\n[assistant]",
        "[system]S\n[user]three\n[assistant]",
    ]
    assert capsys.readouterr().out == "Hi.\n" * 3


def test_ctrl_c_stops_the_answer_only(engine, monkeypatch, capsys):
    engine.script = "Hi."
    stopped = []
    answer = chat.Conversation._answer

    async def interrupted(self, pieces):
        if not stopped:
            stopped.append(True)
            raise KeyboardInterrupt
        await answer(self, pieces)

    monkeypatch.setattr(chat.Conversation, "_answer", interrupted)
    converse(engine, "one\ntwo\n", monkeypatch)
    assert "[stopped]" in capsys.readouterr().err
    assert len(engine.seen) == 1
    assert engine.live == 0
