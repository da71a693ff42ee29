"""A handler ends its job, in whatever way, together with rows of its own, in one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure import Running, State, Tenure
from tenure.errors import InvalidInput, LeaseLost
from tests.worker.support import Lines, eventually, listen, working

END: dict[str, Callable[[Running, Any], object]] = {
    "complete": lambda job, on: job.complete("kept", on=on),
    "fail": lambda job, on: job.fail(ValueError("boom"), on=on),
    "retry": lambda job, on: job.retry("boom", after_seconds=3600, on=on),
    "retry by policy": lambda job, on: job.retry(ValueError("boom"), on=on),
    "snooze": lambda job, on: job.snooze(3600, on=on),
    "skip": lambda job, on: job.skip("nothing to do", on=on),
    "cancel": lambda job, on: job.cancel("superseded", on=on),
}
END_ASYNC: dict[str, Callable[[Running, Any], Awaitable[object]]] = {
    "complete": lambda job, on: job.complete_async("kept", on=on),
    "fail": lambda job, on: job.fail_async(ValueError("boom"), on=on),
    "retry": lambda job, on: job.retry_async("boom", after_seconds=3600, on=on),
    "retry by policy": lambda job, on: job.retry_async(ValueError("boom"), on=on),
    "snooze": lambda job, on: job.snooze_async(3600, on=on),
    "skip": lambda job, on: job.skip_async("nothing to do", on=on),
    "cancel": lambda job, on: job.cancel_async("superseded", on=on),
}
SEEN: dict[str, tuple[State, str, int, str | None]] = {
    "complete": (State.SUCCEEDED, "succeeded", 1, None),
    "fail": (State.FAILED, "failed", 1, "error"),
    "retry": (State.SCHEDULED, "retried", 1, "error"),
    "retry by policy": (State.SCHEDULED, "retried", 1, "error"),
    "snooze": (State.SCHEDULED, "snoozed", 0, "snoozed"),
    "skip": (State.SKIPPED, "skipped", 1, "nothing to do"),
    "cancel": (State.CANCELLED, "cancelled", 0, "superseded"),
}


def make_ledger(app: Tenure) -> None:
    with app.transaction() as transaction:
        transaction.execute("create table ledger (job bigint)")


def ledger(app: Tenure) -> list[int]:
    with app.transaction() as transaction:
        return [job for (job,) in transaction.execute("select job from ledger").fetchall()]


@pytest.mark.parametrize("how", END)
@pytest.mark.parametrize("colour", ["thread", "async"])
def test_a_handler_ends_its_job_with_its_own_rows(
    app: Tenure, lines: Lines, how: str, colour: str
) -> None:
    """Seen failing when only final states counted as committed: the retry of a handler was written
    twice, and the second one was refused. Seen failing when statistics counted each such end as a
    success."""
    events = listen(app).events

    @app.task(name="thread")
    def in_thread(job: Running) -> str | None:
        with app.transaction() as transaction:
            transaction.execute(f"insert into ledger values ({job.id})")
            END[how](job, transaction)
        return None

    @app.task(name="async")
    async def on_loop(job: Running) -> str | None:
        async with app.transaction_async() as transaction:
            await transaction.execute(f"insert into ledger values ({job.id})")
            await END_ASYNC[how](job, transaction)
        return None

    make_ledger(app)
    state, kind, attempts, reason = SEEN[how]
    task = {"thread": in_thread, "async": on_loop}[colour]
    with working(app, promote_seconds=60.0):
        id = task.enqueue().id
        eventually(lambda: any(event.kind == kind for event in events))
    job = app.get(id)
    assert (job.state, job.attempts, job.reason) == (state, attempts, reason)
    assert ledger(app) == [id]
    assert [event.kind for event in events] == ["started", kind]
    counts = [{kind: 1}] if state.final else []  # an operator may put a job back, too
    assert [group.counts for group in app.statistics()] == counts
    assert not lines.with_text("refused")
    assert not lines.with_text("not committed")


@pytest.mark.parametrize("how", END)
def test_an_end_that_is_rolled_back_never_was(app: Tenure, how: str) -> None:
    @app.task(name="task", max_attempts=1)
    def ends(job: Running) -> None:
        try:
            with app.transaction() as transaction:
                transaction.execute(f"insert into ledger values ({job.id})")
                END[how](job, transaction)
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass

    make_ledger(app)
    with working(app):
        job = app.wait(ends.enqueue().id, timeout_seconds=60)
    assert (job.state, job.reason) == (State.FAILED, "not committed")
    assert [group.counts for group in app.statistics()] == [{"failed": 1}]
    assert ledger(app) == []


@pytest.mark.parametrize("how", END)
def test_a_zombie_ends_nothing_and_its_rows_roll_back(app: Tenure, how: str) -> None:
    """Seen failing without the lease: the end of an attempt that had lost it was written."""
    seen: list[str] = []

    @app.task(name="task", max_attempts=5)
    def ends(job: Running) -> str:
        if job.attempt > 1 or seen:
            return "second"
        app.whole_store.sweep(now=datetime.now(UTC) + timedelta(days=1))
        try:
            with app.transaction() as transaction:
                transaction.execute(f"insert into ledger values ({job.id})")
                END[how](job, transaction)
        except LeaseLost:
            seen.append("lost")
            raise
        return "first"

    make_ledger(app)
    with working(app):
        job = app.wait(ends.enqueue().id, timeout_seconds=60)
    assert (job.state, job.result_json, seen) == (State.SUCCEEDED, '"second"', ["lost"])
    assert ledger(app) == []


def test_an_end_without_a_transaction_is_refused(app: Tenure) -> None:
    said: list[str] = []

    @app.task(name="task")
    def ends(job: Running) -> str:
        for end in END.values():
            with pytest.raises(InvalidInput, match="this needs on="):
                end(job, None)
            said.append("refused")
        with app.transaction() as transaction, pytest.raises(InvalidInput, match="an exception or"):
            job.fail(7, on=transaction)  # type: ignore[arg-type]
        return "well"

    with working(app):
        assert ends.enqueue().wait(timeout_seconds=60) == "well"
    assert len(said) == len(END)
