"""Tenure: durable jobs for Python on the SQL database you already have."""

from tenure.app import Tenure
from tenure.client import Handle
from tenure.control import Cancel, Retry, Skip, Snooze
from tenure.hooks import JobEvent
from tenure.job import Job, State, Unique, Until
from tenure.policy import Exponential, Fixed, Schedule
from tenure.running import Running, current
from tenure.tasks import Call, Task, TaskSet
from tenure.worker.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Call",
    "Cancel",
    "Exponential",
    "Fixed",
    "Handle",
    "Job",
    "JobEvent",
    "Retry",
    "Running",
    "Schedule",
    "Skip",
    "Snooze",
    "State",
    "Task",
    "TaskSet",
    "Tenure",
    "Unique",
    "Until",
    "Worker",
    "current",
]
