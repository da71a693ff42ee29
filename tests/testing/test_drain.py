"""Jobs run here and now, as a worker would run them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pytest

from tenure import Cancel, Fixed, JobEvent, Retry, Running, Skip, Snooze, State, Tenure, current
from tenure.errors import InvalidInput, JobFailed, PayloadInvalid, StoreError
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.testing import Clock, drain, drain_async, run_job, run_job_async


def states(app: Tenure, *queues: str) -> list[str]:
    """What became of everything, without a word about errors."""
    return [str(job.state) for job in drain(app, *queues, raise_errors=False)]


def test_everything_that_is_ready_runs_also_what_that_enqueues(app: Tenure) -> None:
    ran: list[int] = []

    @app.task(name="count")
    def count(left: int) -> None:
        ran.append(left)
        if left:
            count.enqueue(left - 1)

    @app.task(name="count_async", queue="other")
    async def count_async(left: int) -> int:
        ran.append(-left)
        if left:
            await count_async.enqueue_async(left - 1)
        return left

    count.enqueue(2)
    handle = count_async.enqueue(1)
    seen = drain(app)
    assert [(job.task, job.state) for job in seen].count(("count", State.SUCCEEDED)) == 3
    assert [job.task for job in seen].count("count_async") == 2
    assert sorted(ran) == [-1, 0, 0, 1, 2]
    assert handle.wait(timeout_seconds=0) == 1
    assert drain(app) == []


def test_the_same_on_an_event_loop(app: Tenure) -> None:
    @app.task(name="twice")
    async def twice(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    @app.task(name="blocking")
    def blocking(number: int) -> int:
        return asyncio.run(asyncio.sleep(0, number))  # refused where a loop runs

    async def test() -> None:
        handles = [await twice.enqueue_async(3), await blocking.enqueue_async(4)]
        assert len(await drain_async(app)) == 2
        assert [await each.wait_async(timeout_seconds=0) for each in handles] == [6, 4]
        await twice.enqueue_async(1)
        later = await twice.enqueue_async(5)
        assert (await run_job_async(app, later.id)).result_json == "10"
        with pytest.raises(InvalidInput, match="an event loop runs here: use drain_async"):
            drain(app)

    asyncio.run(test())


def test_a_function_runs_in_the_callers_thread_where_no_loop_runs(local: Tenure) -> None:
    where: list[int] = []

    @local.task(name="look")
    def look() -> int:
        where.append(threading.get_ident())
        return asyncio.run(asyncio.sleep(0, 7))

    look.enqueue()
    assert drain(local)[0].result_json == "7"
    assert where == [threading.get_ident()]


def test_isolated_tasks_run_in_this_process(local: Tenure) -> None:
    @local.task(name="pid", isolation="process")
    def pid() -> int:
        return os.getpid()

    @local.task(name="pid_async", isolation="process")
    async def pid_async() -> int:
        return os.getpid()

    pid.enqueue()
    pid_async.enqueue()
    assert [job.result_json for job in drain(local)] == [str(os.getpid())] * 2


def test_queues_can_be_named_and_a_paused_one_waits(app: Tenure) -> None:
    @app.task(name="send", queue="mail")
    def send() -> None: ...

    @app.task(name="other")
    def other() -> None: ...

    send.enqueue()
    other.enqueue()
    app.pause("mail")
    assert [job.task for job in drain(app)] == ["other"]
    app.resume("mail")
    other.enqueue()
    assert [job.task for job in drain(app, "mail")] == ["send"]
    assert [job.task for job in drain(app, "nobody", "default")] == ["other"]


def test_time_passes_only_when_told(app: Tenure, tenure_clock: Clock) -> None:
    @app.task(name="flaky", retry=Fixed(60), max_attempts=3)
    def flaky(job: Running) -> int:
        if job.attempt < 3:
            raise OSError("not yet")
        return job.attempt

    flaky.options(delay_seconds=3600).enqueue()
    assert states(app) == []
    tenure_clock.advance(3600)
    assert states(app) == ["scheduled"]
    tenure_clock.advance(59)
    assert states(app) == []
    tenure_clock.advance(1)
    assert states(app) == ["scheduled"]
    tenure_clock.advance(60)
    [job] = drain(app)
    assert (job.state, job.result_json, job.finished_at) == ("succeeded", "3", tenure_clock.now)


def test_the_clock_can_be_moved_as_far_as_it_takes(app: Tenure, tenure_clock: Clock) -> None:
    @app.task(name="flaky", retry=Fixed(60), max_attempts=3)
    def flaky(job: Running) -> None:
        if job.attempt < 3:
            raise OSError("not yet")

    @app.task(name="elsewhere", queue="elsewhere")
    def elsewhere() -> None: ...

    started = tenure_clock.now
    flaky.options(delay_seconds=3600).enqueue()
    elsewhere.options(delay_seconds=86_400).enqueue()
    seen = drain(app, "default", with_scheduled=True, raise_errors=False)
    assert [job.state for job in seen] == ["scheduled", "scheduled", "succeeded"]
    assert (tenure_clock.now - started).total_seconds() == 3600 + 120
    assert len(drain(app, with_scheduled=True)) == 1


def test_without_a_clock_of_its_own_time_cannot_be_moved(url: str) -> None:
    with Tenure(url) as app:

        @app.task(name="later")
        def later() -> None: ...

        later.options(delay_seconds=60).enqueue()
        with pytest.raises(InvalidInput, match="use it within frozen"):
            drain(app, with_scheduled=True)


def test_what_a_handler_raises_is_recorded_and_raised(app: Tenure) -> None:
    @app.task(name="broken")
    def broken() -> None:
        raise ZeroDivisionError("by nothing")

    @app.task(name="broken_async", max_attempts=1)
    async def broken_async() -> None:
        raise StopIteration("of all things")

    broken.enqueue()
    with pytest.raises(ZeroDivisionError, match="by nothing") as raised:
        drain(app)
    assert raised.value.__notes__ == ["in job 1 of broken, attempt 1"]
    assert app.get(1).state is State.SCHEDULED
    broken_async.enqueue()
    with pytest.raises((RuntimeError, StopIteration)):
        drain(app)
    assert app.get(2).state is State.FAILED


def test_a_failed_assertion_of_pytest_ends_the_test(local: Tenure) -> None:
    @local.task(name="picky")
    def picky() -> None:
        pytest.fail("not like this")

    picky.enqueue()
    with pytest.raises(pytest.fail.Exception, match="not like this"):
        drain(local)


def test_the_answers_of_a_handler_are_no_errors(app: Tenure) -> None:
    @app.task(name="answer")
    def answer(kind: str) -> None:
        raise {"retry": Retry(after_seconds=5), "snooze": Snooze(5), "skip": Skip("nothing"),
               "cancel": Cancel("superseded")}[kind]  # fmt: skip

    for kind in ("retry", "snooze", "skip", "cancel"):
        answer.enqueue(kind)
    assert [str(job.state) for job in drain(app)] == [
        "scheduled", "scheduled", "skipped", "cancelled"
    ]  # fmt: skip


def test_a_job_that_fails_without_an_exception_is_seen(local: Tenure) -> None:
    @local.task(name="tired", max_attempts=1)
    def tired() -> None:
        raise Retry("no more")

    @local.task(name="unstorable", max_attempts=1)
    def unstorable() -> object:
        return object()

    tired.enqueue()
    with pytest.raises(JobFailed, match="no more"):
        drain(local)
    unstorable.enqueue()
    with pytest.raises(JobFailed, match="unstorable"):
        drain(local)


def test_a_task_that_nobody_knows_is_named(local: Tenure) -> None:
    @local.task(name="known")
    def known() -> None: ...

    [job] = local.store.enqueue([NewJob(task="shop.gone", args=encode({}))])
    with pytest.raises(InvalidInput, match=r"no task shop\.gone; its tasks are known"):
        drain(local)
    assert (local.get(job.id).state, local.get(job.id).reason) == ("scheduled", "no handler")


def test_arguments_that_do_not_fit_are_named(local: Tenure) -> None:
    @local.task(name="add")
    def add(number: int) -> int:
        return number

    [job] = local.store.enqueue([NewJob(task="add", args=encode({"number": "one"}))])
    with pytest.raises(PayloadInvalid, match="number"):
        drain(local)
    unfit = "Expected `int`, got `str` - at `$.number`"
    assert local.get(job.id).reason == f"arguments do not fit this code: {unfit}"
    assert len(drain(local, with_scheduled=True, raise_errors=False)) > 1
    assert local.get(job.id).state is State.FAILED


def test_a_job_that_enqueues_itself_for_ever_is_found_out(local: Tenure) -> None:
    @local.task(name="again")
    def again() -> None:
        again.enqueue()

    again.enqueue()
    with pytest.raises(InvalidInput, match="3 jobs have run and there are more"):
        drain(local, most=3)
    assert [count.state for count in local.count_live()] == ["queued"]


def test_what_is_interrupted_stays_in_line(local: Tenure) -> None:
    @local.task(name="stop")
    def stop() -> None:
        raise KeyboardInterrupt

    handle = stop.enqueue()
    with pytest.raises(KeyboardInterrupt):
        drain(local)
    assert (local.get(handle.id).state, local.get(handle.id).attempts) == ("queued", 0)


def test_a_test_that_is_cancelled_leaves_its_job_in_line(app: Tenure) -> None:
    @app.task(name="sleep")
    async def sleep() -> None:
        await asyncio.sleep(3600)

    async def test() -> int:
        handle = await sleep.enqueue_async()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await drain_async(app)
        return handle.id

    job = app.get(asyncio.run(test()))
    assert (job.state, job.attempts) == ("queued", 0)


def test_a_handler_that_cancels_itself_does_not_cancel_the_test(local: Tenure) -> None:
    @local.task(name="quit", max_attempts=1)
    async def quit_() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def test() -> None:
        await quit_.enqueue_async()
        [job] = await drain_async(local, raise_errors=False)
        assert job.state is State.FAILED
        await asyncio.sleep(0)

    asyncio.run(test())


def test_progress_and_checkpoints_are_kept(app: Tenure) -> None:
    @app.task(name="long", max_attempts=2)
    async def long(job: Running) -> int:
        done = await job.load_async(int) or 0
        job.progress(0.5, "half")
        await job.save_async(done + 1)
        if not done:
            raise OSError("in the middle")
        return done + 1

    handle = long.enqueue()
    with pytest.raises(OSError, match="in the middle"):
        drain(app)
    progress = app.progress(handle.id)
    assert (progress.fraction, progress.message, progress.checkpoint_json) == (0.5, "half", "1")
    drain(app, with_scheduled=True)
    assert handle.wait(timeout_seconds=0) == 2


def test_a_job_that_is_cancelled_while_it_runs_sees_it_at_once(app: Tenure) -> None:
    @app.task(name="patient")
    def patient(job: Running) -> None:
        assert not job.cancelled
        assert not job.cancelled.wait(3600)
        app.cancel(job.id)
        job.check()

    @app.task(name="deaf", retry=Fixed(0))
    def deaf(job: Running) -> None:
        app.cancel(job.id)
        raise OSError("does not look")

    patient.enqueue()
    deaf.enqueue()
    waiting = patient.options(delay_seconds=60).enqueue()
    app.cancel(waiting.id)
    assert states(app) == ["cancelled", "cancelled"]
    assert app.get(waiting.id).state is State.CANCELLED


def test_hooks_surround_jobs_and_hear_of_them(app: Tenure, tenure_clock: Clock) -> None:
    told: list[str] = []
    name: ContextVar[str] = ContextVar("name", default="nobody")

    @app.on_start
    async def start() -> None:
        told.append("start")

    @app.on_stop
    def stop() -> None:
        told.append("stop")

    @app.around
    @contextmanager
    def around(job: Running) -> Iterator[None]:
        name.set(job.task)
        told.append("in")
        yield
        told.append("out")

    @app.listen
    def listen(event: JobEvent) -> None:
        told.append(event.kind)
        assert event.at == tenure_clock.now
        assert event.worker == "testing"

    @app.task(name="hear", max_attempts=1)
    async def hear(fail: bool) -> str:
        job = current()
        assert job is not None
        assert name.get() == job.task == "hear"
        if fail:
            raise OSError("on purpose")
        return name.get()

    assert drain(app) == []
    assert told == []
    hear.enqueue(False)
    drain(app)
    assert told == ["start", "started", "in", "out", "succeeded", "stop"]
    assert name.get() == "nobody"
    told.clear()
    hear.enqueue(True)
    with pytest.raises(OSError, match="on purpose"):
        drain(app)
    assert told == ["start", "started", "in", "failed", "stop"]


def test_what_a_worker_needs_to_start_is_needed_here(local: Tenure) -> None:
    @local.on_start
    def start() -> None:
        raise StoreError("no pool")

    @local.task(name="nothing")
    def nothing() -> None: ...

    handle = nothing.enqueue()
    with pytest.raises(StoreError, match="no pool"):
        drain(local)
    assert local.get(handle.id).state is State.QUEUED


def test_coroutines_and_hooks_share_one_loop(local: Tenure) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @local.on_start
    async def start() -> None:
        loops.append(asyncio.get_running_loop())

    @local.task(name="look")
    async def look() -> None:
        loops.append(asyncio.get_running_loop())

    look.enqueue()
    look.enqueue()
    drain(local)
    assert len(loops) == 3
    assert len(set(loops)) == 1


def test_a_job_belongs_to_its_tenant(app: Tenure) -> None:
    @app.task(name="whose")
    def whose(job: Running, more: int) -> str:
        if more:
            whose.enqueue(more - 1)
        return job.tenant

    whose.options(tenant="acme").enqueue(1)
    assert [(job.tenant, job.result_json) for job in drain(app)] == [("acme", '"acme"')] * 2


def test_parents_run_before_their_children(app: Tenure) -> None:
    ran: list[str] = []

    @app.task(name="step")
    def step(name: str) -> None:
        ran.append(name)

    first = step.enqueue("first")
    step.options(parents=[first], priority=-5).enqueue("second")
    drain(app)
    assert ran == ["first", "second"]


def test_one_job_runs_before_all_others(app: Tenure) -> None:
    ran: list[int] = []

    @app.task(name="note", retry=Fixed(60))
    def note(number: int) -> None:
        ran.append(number)
        if number < 0:
            raise OSError("negative")

    first, _, third, fourth = (note.enqueue(number) for number in (1, 2, 3, -4))
    assert run_job(app, third.id).state is State.SUCCEEDED
    with pytest.raises(OSError, match="negative"):
        run_job(app, fourth.id)
    assert (app.get(fourth.id).state, app.get(fourth.id).priority) == ("scheduled", 0)
    assert app.get(first.id).token == 1
    drain(app)
    assert ran == [3, -4, 1, 2]


def test_a_job_alone_in_its_line_is_not_moved(app: Tenure) -> None:
    @app.task(name="alone", priority=3)
    def alone() -> None: ...

    handle = alone.enqueue()
    assert run_job(app, handle.id).priority == 3
    assert [event.kind for event in app.timeline(handle.id)] == ["enqueued", "claimed", "succeeded"]


def test_urgent_jobs_step_aside_for_the_one_that_is_wanted(app: Tenure) -> None:
    @app.task(name="urgent", priority=-100)
    def urgent() -> None: ...

    first, second = urgent.enqueue(), urgent.enqueue()
    assert run_job(app, second.id).id == second.id
    assert (app.get(first.id).state, app.get(first.id).attempts) == ("queued", 0)


def test_a_job_that_is_not_ready_is_not_run(app: Tenure, tenure_clock: Clock) -> None:
    @app.task(name="later")
    def later() -> None: ...

    handle = later.options(delay_seconds=3600).enqueue()
    with pytest.raises(InvalidInput, match=r"cannot run now: due in 60 min, at 2030-01-01 13:00"):
        run_job(app, handle.id)
    assert app.why(handle.id).startswith("due in 60 min")
    tenure_clock.advance(3600)
    assert run_job(app, handle.id).state is State.SUCCEEDED
    with pytest.raises(InvalidInput, match="cannot run now: succeeded"):
        run_job(app, handle.id)
    held = later.enqueue()
    app.hold(held.id)
    with pytest.raises(InvalidInput, match="cannot run now: held"):
        run_job(app, held.id)
