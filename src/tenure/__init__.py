"""Tenure: durable jobs for Python on the SQL database you already have.

app.py          the application: tasks, their jobs and their workers in one object
tasks.py        tasks and calls of them; signature.py: their arguments as JSON
client.py       what users do with jobs; handle.py waiting.py: how they wait for one
workflow.py     graphs of jobs; drawing.py shows one as text
schedules.py    schedules at run time
running.py      the running job as its handler sees it; control.py: what it may return
hooks.py        around, on_start, on_stop, listeners
errors.py       every error; passwords.py keeps passwords out of them
rules/          pure rules: states, retries, ticks, gates, graphs
store/          the only place with SQL or a driver
worker/         claims, runs and settles jobs
cli/ testing/ benchmark/     the command line, tools for tests of users, `tenure bench`

Names are loaded when they are first used, so that `import tenure` is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tenure.app import Tenure
    from tenure.control import Cancel, Retry, Skip, Snooze
    from tenure.handle import Handle
    from tenure.hooks import JobEvent
    from tenure.rules.gates import Gate
    from tenure.rules.job import Job, State, Unique, Until
    from tenure.rules.retry import Delays, Exponential, Fixed
    from tenure.rules.ticks import ScheduleTiming
    from tenure.running import Running, current
    from tenure.schedules import Schedules
    from tenure.store.schedules.records import ScheduleInfo, ScheduleRun
    from tenure.tasks import Call, Task, TaskSet
    from tenure.worker.worker import Worker
    from tenure.workflow import Node, Workflow, WorkflowRun

__all__ = [
    "Call",
    "Cancel",
    "Delays",
    "Exponential",
    "Fixed",
    "Gate",
    "Handle",
    "Job",
    "JobEvent",
    "Node",
    "Retry",
    "Running",
    "ScheduleInfo",
    "ScheduleRun",
    "ScheduleTiming",
    "Schedules",
    "Skip",
    "Snooze",
    "State",
    "Task",
    "TaskSet",
    "Tenure",
    "Unique",
    "Until",
    "Worker",
    "Workflow",
    "WorkflowRun",
    "current",
]

_HOMES = {
    "app": ("Tenure",),
    "control": ("Cancel", "Retry", "Skip", "Snooze"),
    "handle": ("Handle",),
    "rules.gates": ("Gate",),
    "hooks": ("JobEvent",),
    "rules.job": ("Job", "State", "Unique", "Until"),
    "rules.retry": ("Exponential", "Fixed", "Delays"),
    "running": ("Running", "current"),
    "rules.ticks": ("ScheduleTiming",),
    "schedules": ("Schedules",),
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
