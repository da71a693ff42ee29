"""The application of a play: the handlers of the crash tests, and some at gates and in workflows.

It records itself in processes that a worker starts: members of a crew, and children.
"""

from __future__ import annotations

import asyncio
import os

from tenure.app import Tenure
from tenure.errors import InvalidWorkflow
from tenure.rules.ends import FailedJob
from tenure.rules.gates import Gate
from tenure.running import Running
from tenure.tasks import TaskSet
from tenure.testing.recorder import RecordingEnvironment
from tests.crash import handlers
from tests.crash.handlers import nap

MODULE = "tests.chaos.tasks"
tasks = TaskSet()


@tasks.task(gate=Gate("one", max_running=1, key=lambda key: key), max_attempts=100)
async def one_by_one(key: str, seconds: float) -> None:  # noqa: ARG001
    """For each key one at a time, in order."""
    await asyncio.sleep(seconds)


@tasks.task(gate=Gate("two", max_running=2, key=lambda key: key), max_attempts=100)
def by_twos(job: Running, key: str, seconds: float) -> None:  # noqa: ARG001
    """For each key two at a time, in threads."""
    job.lost.wait(seconds)
    job.check()


@tasks.task(gate=Gate("three", max_running=3), max_attempts=100)
async def by_threes(seconds: float) -> None:
    """Three at a time in all."""
    await asyncio.sleep(seconds)


@tasks.task(gate=Gate("paced", rate=50, burst=5), max_attempts=100)
async def paced() -> None:
    """So many in a second."""


@tasks.on_failed
@tasks.task(max_attempts=100)
async def hear(failed: FailedJob) -> int:
    """Called for each failure, once."""
    return failed.id


@tasks.task(max_attempts=100)
def grow(job: Running, width: int) -> int:
    """A node that adds others to its workflow."""
    for n in range(width):
        job.workflow.add(nap.call(0.01), name=f"grown-{job.id}-{n}", before=["join"])
    try:
        job.workflow.enqueue()
    except InvalidWorkflow:  # nobody waits any more who could wait for these
        return 0
    return width


@tasks.task(max_attempts=100)
async def last() -> None:
    """The finaliser of a workflow."""


@tasks.task(max_attempts=100)
async def tick() -> None:
    """What schedules enqueue."""


app = Tenure()
app.include(handlers.tasks)
app.include(tasks)
if handlers.RECORD in os.environ:
    RecordingEnvironment(handlers.stage()).record(app)
