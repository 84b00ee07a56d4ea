"""Records what a live scheduler decides, and replays it; knows no scheduler.

Record: wrap the scheduler of an engine (``llm-stack serve --record-plans run.jsonl.gz`` does)::

    scheduler = RecordingScheduler("run.jsonl.gz", "default", config, cache)

Replay: ``replay("run.jsonl.gz")``, or ``python -m llm_scheduler.replay run.jsonl.gz``. A scheduler that
decides by its arguments and its clock alone reaches equal plans. ``steps_of`` yields what the simulator fits
its step times to.
"""

from llm_scheduler.recording.errors import RecordError, RecordingStopped
from llm_scheduler.recording.recorder import RecordingScheduler
from llm_scheduler.recording.replaying import Difference, ReplayReport, replay
from llm_scheduler.recording.steps import StepLine, steps_of

__all__ = [
    "Difference",
    "RecordError",
    "RecordingScheduler",
    "RecordingStopped",
    "ReplayReport",
    "StepLine",
    "replay",
    "steps_of",
]
