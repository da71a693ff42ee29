"""Waiting for the end of a job: its result, its failure, or the end of patience."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

from tenure import Cancel, Job, Skip, State, Tenure, Worker, Workflow
from tenure.client import _wait
from tenure.errors import (
    BlockingWait,
    JobFailed,
    JobNotFound,
    OutOfRange,
    PayloadInvalid,
    WaitTimeout,
)
from tenure.rules.codec import encode
from tenure.rules.lifecycle import succeed
from tenure.store.look import jobs as inspect
from tenure.store.proxy import StoreProxy
from tenure.store.session import drive
from tenure.worker.environment import Environment
from tests.support.working import QUICK, working


def test_patience_ends_and_the_job_goes_on(app: Tenure) -> None:
    go_on = threading.Event()

    @app.task()
    def slow() -> str:
        go_on.wait(30)
        return "done"

    with working(app):
        handle = slow.enqueue()
        with pytest.raises(WaitTimeout, match=f"job {handle.id} is not finished after 0.05 s"):
            handle.wait(timeout_seconds=0.05)
        with pytest.raises(TimeoutError):  # the standard one catches it, too
            asyncio.run(_wait_async(app, handle.id, 0.05))
        go_on.set()
        assert handle.wait(timeout_seconds=30) == "done"


def test_patience_may_be_a_timedelta_and_stand_alone(app: Tenure) -> None:
    @app.task()
    def never() -> None: ...

    handle, short = never.enqueue(), timedelta(milliseconds=50)
    late = f"job {handle.id} is not finished after 0.05 s"
    for wait in (
        lambda: handle.wait(timeout_seconds=short),
        lambda: handle.wait(0.05),
        lambda: app.wait(handle, timeout_seconds=short),
        lambda: asyncio.run(_wait_async(app, handle.id, short)),
    ):
        with pytest.raises(WaitTimeout, match=late):
            wait()
    flow = app.workflow("flow")
    node = flow.add(never.call())
    run = flow.enqueue()
    with pytest.raises(WaitTimeout, match=r"is not finished after 0\.05 s"):
        run.wait(timeout_seconds=short)
    with pytest.raises(WaitTimeout, match=r"is not finished after 0\.05 s"):
        run.result(node, timeout_seconds=short)


async def _wait_async(app: Tenure, id: int, timeout_seconds: float | timedelta) -> None:
    try:
        await app.wait_async(id, timeout_seconds=timeout_seconds)
    finally:
        await app.close_loop()


def test_the_end_of_patience_says_why(app: Tenure) -> None:
    @app.task()
    def work() -> None: ...

    with pytest.raises(WaitTimeout, match="no worker is alive: start one"):
        work.enqueue().wait(timeout_seconds=0)


def test_a_finished_job_is_answered_at_once(app: Tenure) -> None:
    @app.task()
    def work() -> int:
        return 7

    with working(app):
        handle = work.enqueue()
        handle.wait(timeout_seconds=30)
    assert handle.wait(timeout_seconds=0) == 7
    assert app.wait(handle.id).state is State.SUCCEEDED


@pytest.mark.parametrize("patience", [-1, float("nan"), "5"])
def test_patience_is_a_number_of_seconds(local: Tenure, patience: float) -> None:
    @local.task()
    def work() -> None: ...

    with pytest.raises(OutOfRange, match="timeout_seconds"):
        work.enqueue().wait(timeout_seconds=patience)


def test_every_way_to_end_without_a_result(app: Tenure) -> None:
    @app.task(max_attempts=1)
    def fails() -> None:
        raise ValueError("no such user")

    @app.task()
    def skips() -> None:
        raise Skip("nothing to do")

    @app.task()
    def cancels() -> None:
        raise Cancel("superseded")

    with working(app):
        with pytest.raises(JobFailed) as failed:
            fails.enqueue().wait(timeout_seconds=30)
        with pytest.raises(JobFailed) as skipped:
            skips.enqueue().wait(timeout_seconds=30)
        with pytest.raises(JobFailed) as cancelled:
            cancels.enqueue().wait(timeout_seconds=30)

    assert failed.value.state is State.FAILED
    assert str(failed.value).endswith("is failed (error): ValueError: no such user")
    assert failed.value.error is not None
    told = failed.value.error
    assert (told.type, told.message) == ("ValueError", "no such user")
    assert "raise ValueError" in told.traceback
    assert (skipped.value.state, skipped.value.error) == (State.SKIPPED, None)
    assert "is skipped (nothing to do)" in str(skipped.value)
    assert (cancelled.value.state, cancelled.value.error) == (State.CANCELLED, None)
    assert "is cancelled (superseded)" in str(cancelled.value)


def test_a_job_cancelled_from_outside(app: Tenure) -> None:
    @app.task()
    def work() -> None: ...

    handle = work.enqueue()
    app.cancel(handle.id, reason="the user left")
    with pytest.raises(JobFailed, match=r"is cancelled \(the user left\)"):
        handle.wait(timeout_seconds=30)


@pytest.mark.parametrize("id", [404, 0, -1, 2**70])
def test_there_is_no_such_job(app: Tenure, id: int) -> None:
    with pytest.raises(JobNotFound, match=f"there is no job {id}"):
        app.wait(id, timeout_seconds=1)


@pytest.mark.parametrize("result", ["seven", None])
def test_a_result_that_does_not_fit_its_annotation_fails_the_job(
    app: Tenure, result: object
) -> None:
    @app.task()
    def count() -> int:
        return result  # type: ignore[return-value]

    with working(app):
        handle = count.enqueue()
        with pytest.raises(JobFailed, match="does not fit its annotation int"):
            handle.wait(timeout_seconds=30)
    job = app.get(handle.id)
    assert (job.state, job.attempts, job.result_json) == (State.FAILED, 1, None)


def test_a_result_that_an_older_version_has_stored_is_reported_with_the_job(app: Tenure) -> None:
    @app.task(name="count")
    def old() -> str:
        return "seven"

    with working(app):
        id = app.wait(old.enqueue().id, timeout_seconds=30).id
        old.signature.result_type = int
        with pytest.raises(PayloadInvalid, match=f"job {id} of .* succeeded, but") as error:
            app.handle(old, id).wait(timeout_seconds=30)
    assert "Expected `int`, got `str`" in str(error.value)
    assert app.get(id).result_json == '"seven"'


def test_a_handle_can_be_made_from_an_id(app: Tenure) -> None:
    @app.task()
    def pair() -> tuple[int, str]:
        return 1, "a"

    with working(app):
        id = pair.enqueue().id
        assert app.handle(pair, id).wait(timeout_seconds=30) == (1, "a")
    assert repr(app.handle(pair, id)) == f"<Handle of {pair.name} {id}>"


def test_many_waits_at_once_do_not_hold_each_other_up(app: Tenure) -> None:
    """Each sleeps for itself: nobody keeps a connection, a lock or a thread while it waits."""
    gate = asyncio.Event()

    @app.task()
    async def last() -> str:
        await gate.wait()
        return "last"

    @app.task()
    async def quick(n: int) -> int:
        return n

    async def main() -> None:
        async with app, Worker(app, **QUICK):
            blocked = await last.enqueue_async()
            patient = [asyncio.create_task(blocked.wait_async()) for _ in range(100)]
            handles = await app.enqueue_many_async([quick.call(n) for n in range(50)])
            results = await asyncio.gather(*(h.wait_async(timeout_seconds=30) for h in handles))
            assert results == list(range(50))
            assert not any(task.done() for task in patient)
            gate.set()
            assert await asyncio.gather(*patient) == ["last"] * 100

    asyncio.run(main())


@pytest.mark.slow
def test_waits_in_threads_do_not_hold_each_other_up(app: Tenure) -> None:
    @app.task()
    def work(n: int) -> int:
        return n

    never = work.options(delay_seconds=3600).enqueue(-1)
    outcomes: list[object] = []

    def wait_in_vain() -> None:
        try:
            never.wait(timeout_seconds=1)
        except WaitTimeout as error:
            outcomes.append(error)

    threads = [threading.Thread(target=wait_in_vain) for _ in range(8)]
    with working(app):
        for thread in threads:
            thread.start()
        for n in range(10):
            assert work.enqueue(n).wait(timeout_seconds=30) == n
        for thread in threads:
            thread.join(30)
    assert len(outcomes) == 8


def test_a_result_that_lands_while_a_wait_begins_is_not_missed(app: Tenure) -> None:
    """The job is finished right after the waiter has looked and before it rests."""

    @app.task()
    async def work() -> str:
        return "never run"

    handle = work.enqueue()
    looks: list[State] = []

    class Racing(StoreProxy):
        """Finishes the job between the first look and the rest that follows."""

        def run(self, operation: Any, /, *args: Any, **kwargs: Any) -> Any:
            seen = self._store.run(operation, *args, **kwargs)
            if operation is inspect.get:
                looks.append(seen.state)
                if len(looks) == 1:
                    [lease] = app.store.claim("w1", {"default": 1})
                    app.store.settle("w1", [succeed(lease.jobs[0], encode("landed"))])
            return seen

    job: Job = drive(_wait(Racing(app.store, Environment()), handle.id, 30))
    assert job.result_json == '"landed"'
    assert looks == [State.QUEUED, State.SUCCEEDED]


def test_a_blocking_wait_on_the_event_loop_of_a_worker_is_refused(app: Tenure) -> None:
    """It would stop the worker that has to run the job, for ever."""

    @app.task()
    async def work() -> int:
        return 7

    async def beside_the_worker() -> None:
        async with Worker(app, **QUICK):
            handle = await work.enqueue_async()
            run = await _flow(app, work.call()).enqueue_async()
            for wait in (handle.wait, run.wait, lambda: app.wait(handle)):
                with pytest.raises(BlockingWait, match=r"await \.\.\.wait_async\(\)"):
                    wait()
            assert await asyncio.to_thread(handle.wait) == 7, "a thread may wait"
            assert await handle.wait_async() == 7
            await run.wait_async()
        assert handle.wait(timeout_seconds=0) == 7, "no worker runs here any more"

    asyncio.run(beside_the_worker())


def _flow(app: Tenure, call: Any) -> Workflow:
    flow = app.workflow("flow")
    flow.add(call)
    return flow


def test_a_blocking_wait_in_an_async_handler_fails_the_attempt(app: Tenure) -> None:
    @app.task()
    async def child() -> int:
        return 7

    @app.task(max_attempts=1)
    async def parent() -> int:
        return (await child.enqueue_async()).wait()

    with working(app), pytest.raises(JobFailed, match="BlockingWait"):
        parent.enqueue().wait(timeout_seconds=30)
