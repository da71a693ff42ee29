"""Tenure: durable jobs for Python on the SQL database you already have.

Names are loaded when they are first used, so that `import tenure` is cheap.

app.py         the application: tasks, client, worker and schedules in one object
client.py      all that users do with jobs, on one store
feed.py        follows the feed of finished jobs
handle.py      the handle of an enqueued job
blocking.py    warns of synchronous calls in async code
waiting.py     how a caller waits: look, rest, look again
tasks.py       tasks, typed calls of them, and the sets in which they are registered
batches.py     batch handlers: one call for many jobs
signature.py   the arguments of a task: a call as JSON, and back
workflow.py    workflows: build, enqueue and follow them
schedules.py   schedules: add, edit, pause, trigger and list them
running.py     the running job as its handler sees it
control.py     what a handler may return or raise instead of a result
hooks.py       functions around every job, and at the start and stop of a worker
errors.py      every error that Tenure raises
drawing.py     a workflow as text
passwords.py   keeps passwords out of all messages and logs
rules/         decisions without a database: life cycle, gates, retries, schedules, limits
store/         SQLite and PostgreSQL; the only package with SQL or drivers
claiming/      claim and settle jobs by hand, in a loop of your own
worker/        claims jobs, runs their handlers and settles them
testing/       run jobs inside the tests of an application
benchmark/     what `tenure bench` runs
cli/           the command line
__main__.py    `python -m tenure`, the same command line
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tenure.app import Tenure
    from tenure.batches import Batch, Item
    from tenure.claiming.claimer import AsyncClaimer, Claimer
    from tenure.claiming.housekeeping import Housework
    from tenure.claiming.jobs import AsyncClaimedJob, ClaimedJob
    from tenure.control import Cancel, Retry, Skip, Snooze
    from tenure.feed import Listening
    from tenure.handle import Handle
    from tenure.hooks import JobEvent
    from tenure.rules.attempts import Attempt, AttemptOutcome
    from tenure.rules.ends import Ended, FailedJob, FeedPage, FeedReader
    from tenure.rules.gates import Gate, GateSeen, GateWait, Limits, LineSeen
    from tenure.rules.graph import NodePage, NodeSeen, ParentEnd, WorkflowAdded, WorkflowSeen
    from tenure.rules.job import (
        ErrorInfo,
        Event,
        Job,
        JobWait,
        Progress,
        Replace,
        State,
        Step,
        Unique,
        Until,
        WorkerLoad,
        WorkerSeen,
    )
    from tenure.rules.record import Record
    from tenure.rules.retry import Delays, Exponential, Fixed
    from tenure.rules.statistics import Depth, Histogram, QueueDepth, Statistics
    from tenure.rules.ticks import ScheduleTiming
    from tenure.running import Running, current
    from tenure.schedules import Schedules
    from tenure.store.jobs.bulk import Changes
    from tenure.store.lending import AsyncTransaction, Transaction
    from tenure.store.look.find import Page
    from tenure.store.look.jobs import About, Count, OldestReady, PausedQueue
    from tenure.store.schedules.records import ScheduleInfo, ScheduleRun
    from tenure.tasks import Call, Task, TaskSet
    from tenure.worker.worker import Worker
    from tenure.workflow import Node, Workflow, WorkflowRun

__all__ = [
    "About",
    "AsyncClaimedJob",
    "AsyncClaimer",
    "AsyncTransaction",
    "Attempt",
    "AttemptOutcome",
    "Batch",
    "Call",
    "Cancel",
    "Changes",
    "ClaimedJob",
    "Claimer",
    "Count",
    "Delays",
    "Depth",
    "Ended",
    "ErrorInfo",
    "Event",
    "Exponential",
    "FailedJob",
    "FeedPage",
    "FeedReader",
    "Fixed",
    "Gate",
    "GateSeen",
    "GateWait",
    "Handle",
    "Histogram",
    "Housework",
    "Item",
    "Job",
    "JobEvent",
    "JobWait",
    "Limits",
    "LineSeen",
    "Listening",
    "Node",
    "NodePage",
    "NodeSeen",
    "OldestReady",
    "Page",
    "ParentEnd",
    "PausedQueue",
    "Progress",
    "QueueDepth",
    "Record",
    "Replace",
    "Retry",
    "Running",
    "ScheduleInfo",
    "ScheduleRun",
    "ScheduleTiming",
    "Schedules",
    "Skip",
    "Snooze",
    "State",
    "Statistics",
    "Step",
    "Task",
    "TaskSet",
    "Tenure",
    "Transaction",
    "Unique",
    "Until",
    "Worker",
    "WorkerLoad",
    "WorkerSeen",
    "Workflow",
    "WorkflowAdded",
    "WorkflowRun",
    "WorkflowSeen",
    "current",
]

_HOMES = {
    "app": ("Tenure",),
    "claiming.claimer": ("AsyncClaimer", "Claimer"),
    "claiming.housekeeping": ("Housework",),
    "claiming.jobs": ("AsyncClaimedJob", "ClaimedJob"),
    "control": ("Cancel", "Retry", "Skip", "Snooze"),
    "feed": ("Listening",),
    "handle": ("Handle",),
    "rules.attempts": ("Attempt", "AttemptOutcome"),
    "rules.ends": ("Ended", "FailedJob", "FeedPage", "FeedReader"),
    "rules.gates": ("Gate", "GateSeen", "GateWait", "Limits", "LineSeen"),
    "rules.graph": ("NodePage", "NodeSeen", "ParentEnd", "WorkflowAdded", "WorkflowSeen"),
    "batches": ("Batch", "Item"),
    "hooks": ("JobEvent",),
    "rules.job": (
        "ErrorInfo",
        "Event",
        "Job",
        "JobWait",
        "Progress",
        "Replace",
        "State",
        "Step",
        "Unique",
        "Until",
        "WorkerLoad",
        "WorkerSeen",
    ),
    "rules.record": ("Record",),
    "rules.retry": ("Exponential", "Fixed", "Delays"),
    "rules.statistics": ("Depth", "Histogram", "QueueDepth", "Statistics"),
    "running": ("Running", "current"),
    "rules.ticks": ("ScheduleTiming",),
    "schedules": ("Schedules",),
    "store.jobs.bulk": ("Changes",),
    "store.lending": ("AsyncTransaction", "Transaction"),
    "store.look.find": ("Page",),
    "store.look.jobs": ("About", "Count", "OldestReady", "PausedQueue"),
    "store.schedules.records": ("ScheduleInfo", "ScheduleRun"),
    "tasks": ("Call", "Task", "TaskSet"),
    "worker.worker": ("Worker",),
    "workflow": ("Node", "Workflow", "WorkflowRun"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"tenure has no {name!r}; it has {', '.join(__all__)}")
    value: object = getattr(import_module(f"tenure.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
