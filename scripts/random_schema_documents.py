"""Has SmolLM2 write documents of random schemas and checks each: prints a table.

    nice -n 15 uv run python scripts/random_schema_documents.py --table docs/structured-output.md

For each keyword so many schemas (`random_schemas`), and of each one document under each back end, all in one
batch, at temperature 1. The judges are `jsonschema` and, with formats, `jsonschema_rs`: neither had a part in
the enforcement. What the token limit cuts is no valid document: it is counted as cut, and the schema is asked
again with another seed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jsonschema
import jsonschema_rs
from llm_engine import LLM, SamplingParams
from llm_engine.grammar import GrammarCompiler, GrammarSpec, InvalidGrammar
from llm_engine.grammar.spec import BACKENDS
from random_schemas import GENERATORS, Schema, random_schema

PROMPT = "JSON:"
_MAX_TOKENS = 120
_MAX_TRIES = 6
_BEGIN, _END = "<!-- random schemas: begin -->", "<!-- random schemas: end -->"


@dataclass(slots=True)
class Tally:
    """What became of the schemas of one keyword under one back end.

    Attributes:
        keyword: Of `random_schemas`.
        backend: Of `BACKENDS`.
        refused: Schemas that cannot be enforced, by reason.
        valid: Whole documents that both judges accept.
        invalid: Whole documents that one of them does not: schema and text.
        cut: Documents that the token limit cut.
        unfinished: Schemas whose every document was cut.
    """

    keyword: str
    backend: str
    refused: list[str] = field(default_factory=list)
    valid: int = 0
    invalid: list[tuple[Schema, str]] = field(default_factory=list)
    cut: int = 0
    unfinished: list[Schema] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A document that the model is asked for."""

    tally: Tally
    seed: int
    schema: Schema

    @property
    def spec(self) -> GrammarSpec:
        """What constrains it."""
        return GrammarSpec(kind="json_schema", text=json.dumps(self.schema), backend=self.tally.backend)


def open_engine() -> LLM:
    """SmolLM2 with room for a batch of short documents."""
    return LLM(
        "smollm2",
        device="cpu",
        max_model_len=256,
        kv_cache_bytes=512 << 20,
        max_num_seqs=256,
        threads=1,  # waiting threads would spin on a shared machine
        progress=False,
    )


def run(llm: LLM, compiler: GrammarCompiler, keyword: str, seeds: Sequence[int]) -> list[Tally]:
    """One document of each seed's schema under each back end that takes it; all in one batch."""
    tallies = {backend: Tally(keyword, backend) for backend in BACKENDS}
    waiting: list[_Asked] = []
    for seed, tally in itertools.product(seeds, tallies.values()):
        asked = _Asked(tally, seed, random_schema(keyword, seed))
        try:
            compiler.compile(asked.spec)
            waiting.append(asked)
        except InvalidGrammar as error:
            tally.refused.append(str(error))
    for attempt in range(_MAX_TRIES):
        params = [
            SamplingParams(
                temperature=1.0, seed=one.seed + 1000 * attempt, max_tokens=_MAX_TOKENS, grammar=one.spec
            )
            for one in waiting
        ]
        outputs = llm.generate([PROMPT] * len(params), params, progress=False) if params else []
        cut: list[_Asked] = []
        for one, output in zip(waiting, outputs, strict=True):
            answer = output.outputs[0]
            if answer.finish_reason == "length":
                one.tally.cut += 1
                cut.append(one)
            elif is_valid(one.schema, answer.text):
                one.tally.valid += 1
            else:
                one.tally.invalid.append((one.schema, answer.text))
        waiting = cut
    for one in waiting:
        one.tally.unfinished.append(one.schema)
    return list(tallies.values())


def is_valid(schema: Schema, text: str) -> bool:
    """Whether both judges take the text for a document of the schema, formats included."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    formats = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    return jsonschema.Draft202012Validator(schema).is_valid(value) and formats.is_valid(value)


def table(tallies: Sequence[Tally]) -> Iterator[str]:
    """The lines of a Markdown table: back ends side by side."""
    names = " | ".join(f"{name}: valid | cut, asked again | refused" for name in BACKENDS)
    yield f"| keyword | {names} |"
    yield "|---|" + "---|" * 3 * len(BACKENDS)
    by_key = {(tally.keyword, tally.backend): tally for tally in tallies}
    for keyword in dict.fromkeys(tally.keyword for tally in tallies):
        cells = []
        for backend in BACKENDS:
            one = by_key[keyword, backend]
            asked = one.valid + len(one.invalid) + len(one.unfinished)
            cells.append(
                f"{one.valid} of {asked} | {one.cut} | {len(one.refused)}" if asked else "none | | all"
            )
        yield f"| `{keyword}` | {' | '.join(cells)} |"


def _report(tally: Tally, seconds: float) -> None:
    counts = (
        f"{tally.valid} valid, {len(tally.invalid)} invalid, {tally.cut} cut, {len(tally.refused)} refused"
    )
    print(f"{seconds:6.0f} s  {tally.keyword}, {tally.backend}: {counts}", flush=True)
    for schema, text in tally.invalid:
        print(f"invalid: {json.dumps(schema)}: {text!r}", flush=True)
    for schema in tally.unfinished:
        print(f"unfinished: {json.dumps(schema)}", flush=True)


def main() -> int:
    """Runs all, prints the table and what went wrong; 1 where a document was invalid."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--schemas", type=int, default=100, help="a keyword and back end (default: %(default)s)"
    )
    parser.add_argument("--keyword", action="append", choices=list(GENERATORS), help="only these")
    parser.add_argument("--table", type=Path, help="file to write the table to, between its marks")
    arguments = parser.parse_args()
    tallies: list[Tally] = []
    begun_s = time.monotonic()
    with open_engine() as llm:
        compiler = GrammarCompiler(llm.tokenizer, llm.tokenizer.eos_token_ids)
        for keyword in arguments.keyword or GENERATORS:
            found = run(llm, compiler, keyword, range(arguments.schemas))
            tallies += found
            for one in found:
                _report(one, time.monotonic() - begun_s)
    lines = list(table(tallies))
    print("\n".join(lines))
    if arguments.table is not None:
        text = arguments.table.read_text()
        head, rest = text.split(_BEGIN)
        _, tail = rest.split(_END)
        arguments.table.write_text("\n".join([head + _BEGIN, "", *lines, "", _END + tail]))
    return int(any(tally.invalid for tally in tallies))


if __name__ == "__main__":
    raise SystemExit(main())
