"""What an operator does: cancel, replay, delete, hold, move, pause."""

import asyncio
import threading

import pytest

from tenure import Running, State, Tenure
from tenure.errors import JobNotFound
from tests.support.working import working


def test_cancel_a_job_that_has_not_started(app: Tenure) -> None:
    @app.task()
    def send() -> None: ...

    handle = send.enqueue()
    assert app.cancel(handle.id, reason="the user left") is State.CANCELLED
    assert app.get(handle.id).reason == "the user left"


def test_cancel_a_running_job(app: Tenure) -> None:
    started = threading.Event()

    @app.task()
    async def in_a_coroutine() -> None:
        started.set()
        await asyncio.Event().wait()  # is cancelled here

    @app.task()
    def in_a_thread(job: Running) -> None:
        started.set()
        job.cancelled.wait(30)
        job.check()  # raises when the job should stop

    with working(app):
        for task in (in_a_coroutine, in_a_thread):
            started.clear()
            handle = task.enqueue()
            assert started.wait(30)
            assert app.cancel(handle.id) is State.RUNNING  # it is told at the next heartbeat
            assert app.wait(handle.id, timeout_seconds=30).state is State.CANCELLED


def test_replay_and_delete_a_finished_job(app: Tenure) -> None:
    runs = []

    @app.task()
    def report() -> int:
        runs.append(True)
        return len(runs)

    with working(app):
        handle = report.enqueue()
        assert handle.wait(timeout_seconds=30) == 1
        assert app.replay(handle.id)
        assert handle.wait(timeout_seconds=30) == 2
    app.delete(handle.id)
    with pytest.raises(JobNotFound):
        app.get(handle.id)


def test_hold_a_job_and_let_it_go(app: Tenure) -> None:
    @app.task()
    def invoice(number: int) -> int:
        return number

    held, other = invoice.enqueue(1), invoice.enqueue(2)
    app.hold(held.id, reason="the address is wrong")
    with working(app):
        assert other.wait(timeout_seconds=30) == 2
        assert app.get(held.id).held
        app.unhold(held.id)
        assert held.wait(timeout_seconds=30) == 1


def test_move_a_job_to_another_queue(app: Tenure) -> None:
    @app.task(queue="slow")
    def convert() -> str:
        return "converted"

    handle = convert.enqueue()
    app.move(handle.id, queue="default", priority=-10)
    with working(app, {"default": 0}):  # serves no queue called `slow`
        assert handle.wait(timeout_seconds=30) == "converted"


def test_pause_a_queue(app: Tenure) -> None:
    @app.task(queue="mail")
    def send() -> str:
        return "sent"

    @app.task()
    def tidy() -> None: ...

    app.pause("mail", reason="the provider is down")
    [paused] = app.paused_queues()
    assert (paused.name, paused.reason) == ("mail", "the provider is down")
    handle = send.enqueue()
    with working(app, {"mail": 1, "default": 1}):
        tidy.enqueue().wait(timeout_seconds=30)  # the worker is at work
        assert app.get(handle.id).state is State.QUEUED
        app.resume("mail")
        assert handle.wait(timeout_seconds=30) == "sent"
