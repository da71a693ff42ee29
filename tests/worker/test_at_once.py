"""Progress and cancel do not wait for a heartbeat.

The heartbeats of these workers are 20 minutes apart, and a test waits for 3 minutes at most: what
comes with a heartbeat does not come.
"""

from __future__ import annotations

import threading
from typing import Any

from tenure import Running, State, Tenure
from tenure.rules.job import NewJob
from tests.worker.conftest import Run
from tests.worker.support import PATIENCE_SECONDS, ended, eventually, working

SLOW_BEATS: dict[str, Any] = {"lease_seconds": 3600.0, "heartbeat_seconds": 1200.0}
TASKS = {"in_thread": "step 3", "on_loop": "half", "in_child": "a quarter"}
"""The tasks of the script, and the last progress that each one reports."""


def started(app: Tenure, run_script: Run) -> dict[str, int]:
    """A job of each task, all of them running in another process."""
    script = run_script("slow_beats")
    script.wait_for("serves")
    new = [NewJob(task=f"slow_beats.{task}", max_attempts=1) for task in TASKS]
    ids = dict(zip(TASKS, [job.id for job in app.store.enqueue(new)], strict=True))
    script.wait_for(f"thread {ids['in_thread']} reported 3")
    script.wait_for(f"loop {ids['on_loop']}")
    script.wait_for(f"child {ids['in_child']}")
    return ids


def test_progress_is_seen_without_a_heartbeat(app: Tenure, run_script: Run) -> None:
    ids = started(app, run_script)
    eventually(lambda: {task: app.progress(ids[task]).message for task in TASKS} == TASKS)


def test_a_cancel_reaches_each_kind_of_handler_without_a_heartbeat(
    app: Tenure, run_script: Run
) -> None:
    ids = started(app, run_script)
    assert app.cancel(ids["in_thread"]) is State.RUNNING
    assert ended(app, ids["in_thread"]).state is State.CANCELLED
    rest = [ids["on_loop"], ids["in_child"]]
    assert app.store.cancel_many(rest).asked == tuple(sorted(rest))
    for id in rest:
        assert ended(app, id).state is State.CANCELLED


def test_cancelling_a_workflow_reaches_its_running_node_without_a_heartbeat(app: Tenure) -> None:
    running = threading.Event()

    @app.task(max_attempts=1)
    def stoppable(job: Running) -> None:
        running.set()
        assert job.cancelled.wait(PATIENCE_SECONDS)
        job.check()

    with working(app, **SLOW_BEATS):
        flow = app.workflow("flow")
        node = flow.add(stoppable.call())
        run = flow.enqueue()
        assert running.wait(PATIENCE_SECONDS)
        run.cancel()
        assert ended(app, run.job_id(node)).state is State.CANCELLED


def test_a_later_report_is_seen_too(app: Tenure) -> None:
    go_on = threading.Event()

    @app.task(max_attempts=1)
    def reports(job: Running) -> None:
        job.progress(0.1, "first")
        go_on.wait(PATIENCE_SECONDS)
        for n in range(1000):
            job.progress(n / 1000, f"then {n}")
        assert job.cancelled.wait(PATIENCE_SECONDS)

    with working(app, **SLOW_BEATS):
        handle = reports.enqueue()
        eventually(lambda: app.progress(handle.id).message == "first")
        go_on.set()
        eventually(lambda: app.progress(handle.id).message == "then 999")
        app.cancel(handle.id)
        ended(app, handle.id)
