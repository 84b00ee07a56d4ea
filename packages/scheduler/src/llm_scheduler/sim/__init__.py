"""Simulates an engine: the real scheduler and the real cache on a simulated clock and a step-time model."""

from llm_scheduler.sim.engine_setup import EngineSetup, SimulatedClock
from llm_scheduler.sim.errors import (
    InvalidField,
    InvalidSetup,
    InvalidStepTime,
    InvalidWorkload,
    PlottingUnavailable,
    SchedulerFault,
    SchedulerStalled,
    SimulationError,
    TraceError,
)
from llm_scheduler.sim.json_trace import write_json_trace
from llm_scheduler.sim.lengths import Fixed, Lengths, LogNormal, Uniform, parse_lengths
from llm_scheduler.sim.metrics import jain_index
from llm_scheduler.sim.plan_records import step_records_of
from llm_scheduler.sim.plots import draw, draw_sweep
from llm_scheduler.sim.recording import Outcome, Recording
from llm_scheduler.sim.report import Distribution, Report, Slo
from llm_scheduler.sim.running import Simulation, compare, simulate
from llm_scheduler.sim.simulator import Simulator
from llm_scheduler.sim.step_time import (
    StepLoad,
    StepRecord,
    StepTime,
    StepTimeModel,
    read_step_records,
    write_step_records,
)
from llm_scheduler.sim.step_time_fit import StepTimeFit, fit_step_time
from llm_scheduler.sim.sweeping import SweepPoint, format_sweep, sweep
from llm_scheduler.sim.synthetic import Process, SyntheticSpec, TenantSpec, synthesize
from llm_scheduler.sim.table import format_table
from llm_scheduler.sim.traces import TraceFormat, read_trace
from llm_scheduler.sim.workload import RequestSpec, Workload
from llm_scheduler.sim.workload_summary import WorkloadSummary, summarize

__all__ = [
    "Distribution",
    "EngineSetup",
    "Fixed",
    "InvalidField",
    "InvalidSetup",
    "InvalidStepTime",
    "InvalidWorkload",
    "Lengths",
    "LogNormal",
    "Outcome",
    "PlottingUnavailable",
    "Process",
    "Recording",
    "Report",
    "RequestSpec",
    "SchedulerFault",
    "SchedulerStalled",
    "SimulatedClock",
    "Simulation",
    "SimulationError",
    "Simulator",
    "Slo",
    "StepLoad",
    "StepRecord",
    "StepTime",
    "StepTimeFit",
    "StepTimeModel",
    "SweepPoint",
    "SyntheticSpec",
    "TenantSpec",
    "TraceError",
    "TraceFormat",
    "Uniform",
    "Workload",
    "WorkloadSummary",
    "compare",
    "draw",
    "draw_sweep",
    "fit_step_time",
    "format_sweep",
    "format_table",
    "jain_index",
    "parse_lengths",
    "read_step_records",
    "read_trace",
    "simulate",
    "step_records_of",
    "summarize",
    "sweep",
    "synthesize",
    "write_json_trace",
    "write_step_records",
]
