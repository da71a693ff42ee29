"""Tenure: durable jobs for Python on the SQL database you already have.

Names are loaded when they are first used, so that `import tenure` is cheap.

app.py         the application: tasks, client, worker and schedules in one object
client.py      all that users do with jobs, on one store
feed.py        follows the feed of finished jobs
handle.py      the handle of an enqueued job
blocking.py    warns of synchronous calls in async code
waiting.py     how a caller waits: look, rest, look again
tasks.py       tasks, typed calls of them, and the sets in which they are registered
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
        State,
        Step,
        Unique,
        Until,
        WorkerLoad,
        WorkerSeen,
    )
    from tenure.rules.record import Record
    from tenure.rules.retry import Delays, Exponential, Fixed
    from tenure.rules.ticks import ScheduleTiming
    from tenure.running import Running, current
    from tenure.schedules import Schedules
    from tenure.store.jobs.bulk import Changes
    from tenure.store.look.find import Page
    from tenure.store.look.jobs import About, Count, OldestReady, PausedQueue
    from tenure.store.schedules.records import ScheduleInfo, ScheduleRun
    from tenure.tasks import Call, Task, TaskSet
    from tenure.worker.worker import Worker
    from tenure.workflow import Node, Workflow, WorkflowRun

__all__ = [
    "About",
    "Attempt",
    "AttemptOutcome",
    "Call",
    "Cancel",
    "Changes",
    "Count",
    "Delays",
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
    "Record",
    "Retry",
    "Running",
    "ScheduleInfo",
    "ScheduleRun",
    "ScheduleTiming",
    "Schedules",
    "Skip",
    "Snooze",
    "State",
    "Step",
    "Task",
    "TaskSet",
    "Tenure",
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
    "control": ("Cancel", "Retry", "Skip", "Snooze"),
    "feed": ("Listening",),
    "handle": ("Handle",),
    "rules.attempts": ("Attempt", "AttemptOutcome"),
    "rules.ends": ("Ended", "FailedJob", "FeedPage", "FeedReader"),
    "rules.gates": ("Gate", "GateSeen", "GateWait", "Limits", "LineSeen"),
    "rules.graph": ("NodePage", "NodeSeen", "ParentEnd", "WorkflowAdded", "WorkflowSeen"),
    "hooks": ("JobEvent",),
    "rules.job": (
        "ErrorInfo",
        "Event",
        "Job",
        "JobWait",
        "Progress",
        "State",
        "Step",
        "Unique",
        "Until",
        "WorkerLoad",
        "WorkerSeen",
    ),
    "rules.record": ("Record",),
    "rules.retry": ("Exponential", "Fixed", "Delays"),
    "running": ("Running", "current"),
    "rules.ticks": ("ScheduleTiming",),
    "schedules": ("Schedules",),
    "store.jobs.bulk": ("Changes",),
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
