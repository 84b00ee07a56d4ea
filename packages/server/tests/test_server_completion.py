"""What the command line says of a wrong word, and what shells complete."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from dataclasses import fields

import pytest
from llm_engine.options import EngineOptions
from llm_stack_server.cli import COMMANDS, build_parser, main
from llm_stack_server.cli.command_tree import Flag, Node, read_tree
from llm_stack_server.cli.flag_groups import FLAG_GROUPS
from llm_stack_server.cli.shells import SCRIPTS
from llm_stack_server.settings import ServerSettings

NAMES = [name for summaries in COMMANDS.values() for name in summaries]


@pytest.fixture(scope="module")
def tree() -> Node:
    return read_tree(build_parser(set(NAMES)))


def node_at(tree: Node, *path: str) -> Node:
    (found,) = [node for node in tree.walk() if node.path == path]
    return found


# Wrong words


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serv", "m"], "llm-stack: error: argument COMMAND: there is no 'serv'; did you mean serve?"),
        (["runbatch"], "did you mean run-batch?"),
        (["serve", "m", "--prot", "80"], "llm-stack serve: error: unknown flag --prot; did you mean --port?"),
        (
            ["serve", "m", "--max-model-length=9"],
            "unknown flag --max-model-length; did you mean --max-model-len?",
        ),
        (
            ["serve", "m", "--dtype", "bflot16"],
            "argument --dtype: there is no 'bflot16'; did you mean bfloat16?",
        ),
        (["bench", "thruput"], "did you mean throughput?"),
        (["bench", "serve", "--good-put", "x"], "llm-stack bench serve: error: unknown flag --good-put"),
        (["serve", "m", "--zzz"], "unknown flag --zzz; --help lists them"),
        (["serve", "m", "n"], "unexpected argument 'n'"),
        (["completion", "powershell"], "(choose from bash, zsh, fish)"),
        (["serve", "m", "--max-model", "9"], "did you mean --max-model-len?"),  # no abbreviations
    ],
)
def test_a_wrong_word_is_told_with_the_nearest(arguments, says, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2  # a usage of one line, and the error
    assert says in lines[1]


# Help


def test_the_overview_names_every_command(capsys):
    assert main([]) == 2
    text = capsys.readouterr().out
    for title, summaries in COMMANDS.items():
        assert f"\n{title}:\n" in text
        for name, summary in summaries.items():
            assert f"  {name} " in text
            assert summary in text


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    usage = capsys.readouterr().out.split("\n\n")[0]
    assert usage.startswith(f"usage: llm-stack {name}")
    assert "\n" not in usage


def test_options_are_grouped(tree, capsys):
    for options in (ServerSettings, EngineOptions):
        named = [name for names in FLAG_GROUPS[options.__name__].values() for name in names]
        assert len(named) == len(set(named))
    assert {name for names in FLAG_GROUPS["EngineOptions"].values() for name in names} == {
        field.name for field in fields(EngineOptions)
    }
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    assert text.index("\nscheduling:\n") < text.index("--max-num-seqs")


# The tree


def test_the_tree_has_every_option(tree):
    flags = {name: flag for flag in node_at(tree, "serve").flags for name in flag.names}
    for options in (ServerSettings, EngineOptions):
        for field in fields(options):
            assert field.name == "model" or "--" + field.name.replace("_", "-") in flags
    assert flags["--dtype"].choices == ("auto", "float32", "bfloat16", "float16")
    assert flags["--api-key"].repeats
    assert not flags["--mcp"].takes_value
    assert "--no-mcp" in flags["--mcp"].names
    assert node_at(tree, "bench", "throughput").flags
    assert node_at(tree, "completion").words == ("bash", "zsh", "fish")


# Shells


def need(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


def script_of(shell, tmp_path, capsys):
    assert main(["completion", shell]) == 0
    path = tmp_path / f"completion.{shell}"
    path.write_text(capsys.readouterr().out)
    return path


CASES = [
    ("llm-stack se", {"serve"}),
    ("llm-stack serve --dt", {"--dtype"}),
    ("llm-stack serve --dtype bf", {"bfloat16"}),
    ("llm-stack bench ", {"throughput", "latency", "startup", "serve"}),
    ("llm-stack bench serve --good", {"--goodput"}),
    ("llm-stack serve --good", set()),
    ("llm-stack models check --allow", {"--allow-pickle"}),
    ("llm-stack completion ", {"bash", "zsh", "fish"}),
    ("llm-stack --vers", {"--version"}),
]


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_bash_completes(line, expected, tmp_path, capsys):
    need("bash")
    path = script_of("bash", tmp_path, capsys)
    program = f"""
        set -euo pipefail
        source {path}
        IFS=' ' read -r -a COMP_WORDS <<< "$1"
        if [[ $1 == *' ' ]]; then COMP_WORDS+=(""); fi
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _llm_stack
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    result = subprocess.run(
        ["bash", "-c", program, "bash", line], capture_output=True, text=True, timeout=60, check=True
    )
    assert set(result.stdout.split()) == expected


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_fish_completes(line, expected, tmp_path, capsys):
    need("fish")
    path = script_of("fish", tmp_path, capsys)
    program = f"source {path}; complete -C $argv[1]"
    result = subprocess.run(
        ["fish", "--no-config", "-c", program, line],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=tmp_path,
    )
    found = {text.split("\t")[0] for text in result.stdout.splitlines()}
    assert expected <= found
    assert all(name.startswith(line.split(" ")[-1]) for name in found & {"serve", "chat", "--dtype"})
    assert found - {path.name} == expected


def test_zsh_reads_its_script(tmp_path, capsys):
    need("zsh")
    path = script_of("zsh", tmp_path, capsys)
    program = f"autoload -Uz compinit; compinit -D -u; source {path}; print -r -- $_comps[llm-stack]"
    result = subprocess.run(
        ["zsh", "-f", "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (result.stdout.strip(), result.stderr) == ("_llm_stack", "")


def test_zsh_gets_every_flag_and_command(tree, tmp_path, capsys):
    text = script_of("zsh", tmp_path, capsys).read_text()
    for node in tree.walk():
        body = text.split("_".join(["_llm_stack", *node.path]).replace("-", "_") + "() {\n")[1].split("\n}")[
            0
        ]
        for flag in node.flags:
            assert all(f"{name}=[" in body or f"{name}[" in body for name in flag.names)
        assert all(f"'{child.path[-1]}:" in body for child in node.children)


@pytest.mark.parametrize("shell", list(SCRIPTS))
def test_help_texts_cannot_break_a_script(shell, tmp_path):
    need(shell)
    nasty = 'it\'s 100% "quoted" [x]: $HOME `id` \\ end'
    parser = argparse.ArgumentParser(prog="some-program", description=nasty)
    parser.add_argument("--flag", help=nasty.replace("%", "%%"))
    commands = parser.add_subparsers()
    commands.add_parser("inner", description=nasty)
    tree = read_tree(parser)
    assert tree.flags[1] == Flag(("--flag",), nasty, True, (), False)
    path = tmp_path / "script"
    path.write_text(SCRIPTS[shell](tree, "some-program"))
    result = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
