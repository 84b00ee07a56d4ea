"""Completion scripts of a tree of commands for bash, zsh and fish. Knows nothing of argparse."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping

from llm_stack_server.cli.command_tree import Flag, Node


def bash_script(tree: Node, program: str) -> str:
    """For bash: one function over tables of commands, flags and choices."""
    name = _identifier(program)
    steps = [f'"{" ".join(node.path[:-1])} {node.path[-1]}"' for node in tree.walk() if node.path]
    lines = [
        f'# bash completion: eval "$({program} completion bash)"',
        f"{name}() {{",
        '    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"',
        '    local path="" word flags="" words=""',
        '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        '        case "$path $word" in',
        f'            {"|".join(steps)}) path="${{path:+$path }}$word" ;;',
        "        esac",
        "    done",
        "    COMPREPLY=()",
        '    case "$path $previous" in',
    ]
    for node in tree.walk():
        for flag in node.flags:
            if flag.takes_value:
                at = "|".join(f'"{" ".join(node.path)} {spelling}"' for spelling in flag.names)
                reply = f'mapfile -t COMPREPLY < <(compgen -W {_words(flag.choices)} -- "$current"); return'
                lines.append(f"        {at}) {reply if flag.choices else 'return'} ;;")
    lines += ["    esac", '    case "$path" in']
    for node in tree.walk():
        flags = _words(spelling for flag in node.flags for spelling in flag.names)
        words = _words([*(child.path[-1] for child in node.children), *node.words])
        lines.append(f'        "{" ".join(node.path)}") flags={flags} words={words} ;;')
    lines += [
        "    esac",
        '    if [[ $current == -* ]]; then words="$flags"; fi',
        '    if [[ -n $words ]]; then mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current"); fi',
        "}",
        # Without an answer of ours, names of files.
        f"complete -o bashdefault -o default -F {name} {program}",
    ]
    return "\n".join(lines) + "\n"


def zsh_script(tree: Node, program: str) -> str:
    """For zsh: a function a command, over `_arguments`."""
    lines = [f"#compdef {program}", f"# zsh completion: source <({program} completion zsh)"]
    for node in tree.walk():
        lines += _zsh_function(node, program)
    # Read by the completion system as a file of its own, or sourced.
    lines.append(f'if [[ $funcstack[1] == _{program} ]]; then {_identifier(program)} "$@"')
    lines.append(f"else compdef {_identifier(program)} {program}; fi")
    return "\n".join(lines) + "\n"


def fish_script(tree: Node, program: str) -> str:
    """For fish: a line a flag, under the condition that its command was named."""
    name = _identifier(program)
    steps = " ".join(f"'{' '.join(node.path[:-1])} {node.path[-1]}'" for node in tree.walk() if node.path)
    lines = [
        f"# fish completion: {program} completion fish | source",
        f"function {name}_at",
        "    set -l path",
        "    for word in (commandline -opc)[2..-1]",
        '        switch "$path $word"',
        f"            case {steps}",
        '                set path (string trim "$path $word")',
        "        end",
        "    end",
        '    test "$path" = "$argv"',
        "end",
        f"complete -c {program} -f",
    ]
    for node in tree.walk():
        condition = f"{name}_at {_fish(' '.join(node.path))}"
        head = f"complete -c {program} -n {_fish(condition)}"
        lines += [f"{head} -a {child.path[-1]} -d {_fish(child.help)}" for child in node.children]
        if node.words:
            lines.append(f"{head} -a {_fish(' '.join(node.words))}")
        elif node.takes_words:
            lines.append(f"{head} -F")
        lines += [f"{head} {_fish_flag(flag)}" for flag in node.flags]
    return "\n".join(lines) + "\n"


SCRIPTS: Mapping[str, Callable[[Node, str], str]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}


def _identifier(program: str, path: tuple[str, ...] = ()) -> str:
    return re.sub(r"\W", "_", "_".join(["", program, *path]))


def _words(words: Iterator[str] | tuple[str, ...] | list[str]) -> str:
    return shlex.quote(" ".join(words))


def _zsh_function(node: Node, program: str) -> Iterator[str]:
    yield f"{_identifier(program, node.path)}() {{"
    specs = [spec for flag in node.flags for spec in _zsh_flag(flag)]
    if node.children:
        yield "    local line state"
        specs += ["'1:command:->command'", "'*::argument:->argument'"]
    elif node.words:
        specs.append(_zsh(f"*:word:({' '.join(node.words)})"))
    elif node.takes_words:
        specs.append("'*:file:_files'")
    yield f"    _arguments {'-C ' if node.children else ''}\\"
    yield from (f"        {spec} \\" for spec in specs[:-1])
    yield f"        {specs[-1]}"
    if node.children:
        yield "    case $state in"
        yield "        command)"
        yield "            local -a commands=("
        yield from (f"                {_zsh(child.path[-1] + ':' + child.help)}" for child in node.children)
        yield "            )"
        yield "            _describe command commands ;;"
        yield "        argument)"
        yield "            case $line[1] in"
        for child in node.children:
            yield f"                {child.path[-1]}) {_identifier(program, child.path)} ;;"
        yield "            esac ;;"
        yield "    esac"
    yield "}"


def _zsh_flag(flag: Flag) -> Iterator[str]:
    told = re.sub(r"([\[\]:\\])", r"\\\1", flag.help)
    value = ""
    if flag.takes_value:
        value = f":value:({' '.join(flag.choices)})" if flag.choices else ":value:_files"
    for name in flag.names:
        joins = "=" if flag.takes_value and name.startswith("--") else ""
        yield _zsh(f"{'*' if flag.repeats else ''}{name}{joins}[{told}]{value}")


def _zsh(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fish_flag(flag: Flag) -> str:
    names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names)
    value = ""
    if flag.takes_value:
        value = f" -x -a {_fish(' '.join(flag.choices))}" if flag.choices else " -r -F"
    return f"{names}{value} -d {_fish(flag.help)}"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
