"""Step planning for continuously batched LLM inference, without torch."""

from llm_scheduler.config import SchedulerConfig
from llm_scheduler.errors import (
    Busy,
    DuplicateRequest,
    IncompatibleScheduler,
    InvalidConfig,
    InvalidRequest,
    InvalidResult,
    NeverFits,
    PlanOrderError,
    SchedulerError,
    SchedulerNotFound,
)
from llm_scheduler.loading import installed_schedulers, load_scheduler
from llm_scheduler.plan import NewRow, Ragged, RowOutput, StepPlan, StepResult
from llm_scheduler.policy import Policy
from llm_scheduler.protocol import API_VERSION, Scheduler
from llm_scheduler.request import Request
from llm_scheduler.scheduler import TokenBudgetScheduler
from llm_scheduler.stats import SchedulerStats

__all__ = [
    "API_VERSION",
    "Busy",
    "DuplicateRequest",
    "IncompatibleScheduler",
    "InvalidConfig",
    "InvalidRequest",
    "InvalidResult",
    "NeverFits",
    "NewRow",
    "PlanOrderError",
    "Policy",
    "Ragged",
    "Request",
    "RowOutput",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerError",
    "SchedulerNotFound",
    "SchedulerStats",
    "StepPlan",
    "StepResult",
    "TokenBudgetScheduler",
    "installed_schedulers",
    "load_scheduler",
]
