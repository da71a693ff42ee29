"""A handler that waits for a job for which there is no slot: log, `why`, WaitTimeout and doctor."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from tenure import State, Task, Tenure
from tenure.cli.troubles import of_database
from tenure.errors import WaitTimeout
from tests.worker import isolated
from tests.worker.support import Lines, ended, eventually, working

FIX = "enqueue with parents=, use a workflow, or give more slots"


def is_said_of(app: Tenure, id: int, text: str) -> bool:
    said = app.why(id)
    return text in said and FIX in said


def check(app: Tenure, lines: Lines, parents: list[int], child_task: str, slots: str) -> None:
    """Two jobs of one kind wait for their children; each is reported in four places."""
    said = eventually(
        lambda: (
            lines.with_text("waits for job")
            if len(lines.with_text("waits for job")) == len(parents)
            else []
        )
    )
    children = [job for job in app.list_jobs(task=child_task) if job.state is State.QUEUED]
    assert len(children) == len(parents)
    for parent in parents:
        [line] = [line for line in said if f"job {parent} of" in line]
        [child] = [child.id for child in children if f"waits for job {child.id}: " in line]
        assert slots.partition(";")[0] in line
        eventually(partial(is_said_of, app, child, slots))
        assert f"job {parent} of" in app.why(child)
        with pytest.raises(WaitTimeout, match=f"job {child} is not finished") as late:
            app.wait(child, timeout_seconds=0.001)
        assert FIX in str(late.value)
    problems = [text for text in of_database(app, 3600.0) if FIX in text]
    assert len(problems) == len(parents)
    assert f"job {parents[0]} of" in problems[0]
    assert len(lines.with_text("waits for job")) == len(parents)  # once for each wait
    for found in children:
        app.cancel(found.id)
    for parent in parents:
        assert ended(app, parent).state is State.FAILED
    eventually(lambda: not app.workers()[0].load.waits)


def test_threads_that_wait_for_each_other(app: Tenure, lines: Lines) -> None:
    @app.task(name="child")
    def child() -> None: ...

    @app.task(name="parent", max_attempts=1)
    def parent() -> None:
        both.wait()
        child.enqueue().wait()

    both = threading.Barrier(2)
    parents = [handle.id for handle in app.enqueue_many([parent.call(), parent.call()])]
    with working(app, thread_slots=2):
        taken = "all 2 thread slots are taken by jobs of parent (2); 2 of them wait for other jobs"
        check(app, lines, parents, "child", taken)


def test_a_coroutine_that_waits_in_a_queue_with_one_slot(app: Tenure, lines: Lines) -> None:
    @app.task(name="child")
    async def child() -> None: ...

    @app.task(name="parent", max_attempts=1)
    async def parent() -> None:
        await (await child.enqueue_async()).wait_async()

    with working(app, {"default": 1}):
        taken = "the only slot of queue default is taken by jobs of parent (1); 1 of them waits"
        check(app, lines, [parent.enqueue().id], "child", taken)


@pytest.mark.slow
def test_a_child_process_that_waits(children_app: Tenure, lines: Lines) -> None:
    parent: Task[[], Any] = isolated.waits_for_a_child
    with working(children_app, process_slots=1):
        taken = f"the only process slot is taken by jobs of {parent.name} (1); 1 of them waits"
        check(children_app, lines, [parent.enqueue().id], isolated.pid.name, taken)


def test_a_wait_that_can_end_is_not_reported(app: Tenure, lines: Lines) -> None:
    @app.task(name="child")
    async def child() -> None: ...

    @app.task(name="parent", max_attempts=1)
    def parent() -> None:
        never = child.options(delay_seconds=3600).enqueue()
        never.wait()

    with working(app, thread_slots=1):
        handle = parent.enqueue()
        eventually(lambda: app.workers() and app.workers()[0].load.waits)
        [waits] = app.workers()[0].load.waits
        assert (waits.job_id, waits.task) == (handle.id, "parent")
        app.cancel(waits.waits_for)
        assert ended(app, handle.id).state is State.FAILED
    assert not lines.with_text("waits for job")
