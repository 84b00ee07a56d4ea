"""Step planning for continuously batched LLM inference, without torch."""

from llm_scheduler.caps import Cap
from llm_scheduler.config import SchedulerConfig
from llm_scheduler.errors import (
    Busy,
    DeadlineUnmet,
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
from llm_scheduler.fair import FairShare
from llm_scheduler.loading import installed_schedulers, load_scheduler
from llm_scheduler.plan import NewRow, Ragged, RowOutput, StepPlan, StepResult
from llm_scheduler.policies import EarliestDeadlineFirst, FirstComeFirstServed, PriorityThenArrival
from llm_scheduler.policy import Policy, SchedulerView
from llm_scheduler.policy_loading import installed_policies
from llm_scheduler.prefix import LongestPrefixFirst
from llm_scheduler.protocol import API_VERSION, Scheduler
from llm_scheduler.remote_kv import RemoteKV
from llm_scheduler.request import EncoderItem, Request
from llm_scheduler.running_caps import LoraSlots, SeqsPerTenant
from llm_scheduler.scheduler import TokenBudgetScheduler
from llm_scheduler.service_time import FixedServiceTime, MeasuredServiceTime, ServiceTime
from llm_scheduler.stats import SchedulerStats
from llm_scheduler.step_caps import DraftLengths, EncoderBudget, LongPrefillShare

__all__ = [
    "API_VERSION",
    "Busy",
    "Cap",
    "DeadlineUnmet",
    "DraftLengths",
    "DuplicateRequest",
    "EarliestDeadlineFirst",
    "EncoderBudget",
    "EncoderItem",
    "FairShare",
    "FirstComeFirstServed",
    "FixedServiceTime",
    "IncompatibleScheduler",
    "InvalidConfig",
    "InvalidRequest",
    "InvalidResult",
    "LongPrefillShare",
    "LongestPrefixFirst",
    "LoraSlots",
    "MeasuredServiceTime",
    "NeverFits",
    "NewRow",
    "PlanOrderError",
    "Policy",
    "PriorityThenArrival",
    "Ragged",
    "RemoteKV",
    "Request",
    "RowOutput",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerError",
    "SchedulerNotFound",
    "SchedulerStats",
    "SchedulerView",
    "SeqsPerTenant",
    "ServiceTime",
    "StepPlan",
    "StepResult",
    "TokenBudgetScheduler",
    "installed_policies",
    "installed_schedulers",
    "load_scheduler",
]
