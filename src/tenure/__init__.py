"""Tenure: durable jobs for Python on the SQL database you already have.

Names are loaded when they are first used, so that `import tenure` is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tenure.app import Tenure
    from tenure.client import Handle
    from tenure.control import Cancel, Retry, Skip, Snooze
    from tenure.gate import Gate
    from tenure.hooks import JobEvent
    from tenure.job import Job, State, Unique, Until
    from tenure.policy import Exponential, Fixed, Schedule
    from tenure.running import Running, current
    from tenure.schedule import Timing
    from tenure.schedules import Schedules
    from tenure.store.entries import ScheduleInfo, ScheduleRun
    from tenure.tasks import Call, Task, TaskSet
    from tenure.worker.worker import Worker
    from tenure.workflow import Node, Workflow, WorkflowRun

__all__ = [
    "Call",
    "Cancel",
    "Exponential",
    "Fixed",
    "Gate",
    "Handle",
    "Job",
    "JobEvent",
    "Node",
    "Retry",
    "Running",
    "Schedule",
    "ScheduleInfo",
    "ScheduleRun",
    "Schedules",
    "Skip",
    "Snooze",
    "State",
    "Task",
    "TaskSet",
    "Tenure",
    "Timing",
    "Unique",
    "Until",
    "Worker",
    "Workflow",
    "WorkflowRun",
    "current",
]

_HOMES = {
    "app": ("Tenure",),
    "client": ("Handle",),
    "control": ("Cancel", "Retry", "Skip", "Snooze"),
    "gate": ("Gate",),
    "hooks": ("JobEvent",),
    "job": ("Job", "State", "Unique", "Until"),
    "policy": ("Exponential", "Fixed", "Schedule"),
    "running": ("Running", "current"),
    "schedule": ("Timing",),
    "schedules": ("Schedules",),
    "store.entries": ("ScheduleInfo", "ScheduleRun"),
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
