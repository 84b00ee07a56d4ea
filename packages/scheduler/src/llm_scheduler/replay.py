"""The command line that replays a record; knows nothing of its format."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_scheduler.errors import SchedulerError
from llm_scheduler.recording.replaying import replay
from llm_scheduler.recording.steps import steps_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay a record; return 0 where all plans are equal, 1 where one differs, 2 where it cannot be read."""
    parsed = _parser().parse_args(arguments)
    sys.path.insert(0, str(Path.cwd()))
    try:
        if parsed.steps is not None:
            with Path(parsed.steps).open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(step) + "\n" for step in steps_of(parsed.record))
        report = replay(parsed.record, parsed.scheduler)
    except (SchedulerError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{report}\n")
    return 0 if report.equal else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m llm_scheduler.replay",
        description="Run the record of a live engine through a fresh scheduler and compare all plans.",
    )
    parser.add_argument("record", help="a file that RecordingScheduler wrote")
    parser.add_argument("--scheduler", help="another scheduler: an entry-point name or module:Class")
    parser.add_argument("--steps", metavar="FILE", help="also write the steps and their seconds, for llm-sim")
    return parser


if __name__ == "__main__":
    sys.exit(main())
