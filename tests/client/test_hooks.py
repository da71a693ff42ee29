"""Hooks surround, hear, set up and tear down. None of them can break a job."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from types import TracebackType
from typing import Any

import pytest

from tenure import Cancel, Fixed, JobEvent, Retry, Running, Skip, Snooze, State, Tenure, current
from tenure.errors import ConfigError, InvalidInput
from tests.support.patience import until
from tests.support.working import working

# --- around -------------------------------------------------------------------------------------


def test_the_first_registered_is_the_outermost(app: Tenure) -> None:
    log: list[str] = []

    def note(name: str) -> Callable[[Running], AbstractContextManager[None]]:
        @contextmanager
        def surround(job: Running) -> Iterator[None]:  # noqa: ARG001
            log.append(f"{name} in")
            yield
            log.append(f"{name} out")

        return surround

    app.around(note("outer"))
    app.around(note("inner"))

    @app.task()
    async def work() -> None:
        log.append("work")

    with working(app):
        work.enqueue().wait(timeout_seconds=30)
    assert log == ["outer in", "inner in", "work", "inner out", "outer out"]


def test_it_runs_where_the_handler_runs_and_sees_its_error(app: Tenure) -> None:
    seen: list[object] = []

    class Watch:
        def __init__(self, job: Running) -> None:
            assert job is current()

        def __enter__(self) -> None:
            seen.append(threading.current_thread())

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None:
            seen.append(repr(error))

    app.around(Watch)

    @app.task(max_attempts=1)
    def fails() -> None:
        seen.append(threading.current_thread())
        raise ValueError("no")

    with working(app):
        assert app.wait(fails.enqueue().id, timeout_seconds=30).state is State.FAILED
    assert seen[0] is seen[1]
    assert seen[2] == "ValueError('no')"


def test_an_async_context_manager_surrounds_async_handlers(app: Tenure) -> None:
    log: list[str] = []

    @app.around
    @asynccontextmanager
    async def surround(job: Running) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        log.append(f"in {job.attempt}")
        try:
            yield
        except ValueError as error:
            log.append(repr(error))
            raise
        finally:
            await asyncio.sleep(0)
            log.append("out")

    @app.around
    @contextmanager
    def inner(job: Running) -> Iterator[None]:  # noqa: ARG001
        log.append("inner")
        yield

    @app.task(max_attempts=1)
    async def fails() -> None:
        log.append("work")
        raise ValueError("no")

    @app.task(max_attempts=1, timeout_seconds=0.05)
    async def slow() -> None:
        await asyncio.sleep(60)

    with working(app):
        assert app.wait(fails.enqueue().id, timeout_seconds=30).state is State.FAILED
        assert log == ["in 1", "inner", "work", "ValueError('no')", "out"]
        assert app.wait(slow.enqueue().id, timeout_seconds=30).reason == "timeout"
    assert log[-1] == "out"


def test_an_async_hook_that_fails_or_is_stopped_breaks_nothing(
    app: Tenure, caplog: pytest.LogCaptureFixture
) -> None:
    @app.around
    @asynccontextmanager
    async def fails(job: Running) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        if job.id:
            raise RuntimeError("no")
        yield

    @app.around
    @asynccontextmanager
    async def hangs(job: Running) -> AsyncIterator[None]:
        if job.task == slow.name:
            await asyncio.sleep(60)
        yield

    @app.task()
    async def quick() -> int:
        return 5

    @app.task(max_attempts=1, timeout_seconds=0.05)
    async def slow() -> None: ...

    with working(app):
        assert quick.enqueue().wait(timeout_seconds=30) == 5
        assert app.wait(slow.enqueue().id, timeout_seconds=30).reason == "timeout"
    assert "around hook failed" in caplog.text


def test_an_async_context_manager_around_other_handlers_is_refused(app: Tenure) -> None:
    @asynccontextmanager
    async def surround(job: Running) -> AsyncIterator[None]:  # noqa: ARG001
        yield

    app.around(surround)  # there is no task yet

    @app.task(name="in_thread")
    def in_thread() -> None: ...

    with pytest.raises(ConfigError, match="hook surround is async and cannot surround in_thread"):
        app.around(surround)
    with pytest.raises(ConfigError, match="use a plain context manager"):
        app.run_worker()


def test_a_function_that_is_no_context_manager_is_refused(app: Tenure) -> None:
    async def surround(job: Running) -> None: ...

    with pytest.raises(InvalidInput, match="decorate it with @contextmanager or @asynccontext"):
        app.around(surround)  # type: ignore[type-var]


def test_a_generator_or_a_class_that_is_no_context_manager_is_refused(app: Tenure) -> None:
    def generator(job: Running) -> Iterator[None]:  # noqa: ARG001
        yield

    async def async_generator(job: Running) -> AsyncIterator[None]:  # noqa: ARG001
        yield

    class Nothing:
        def __init__(self, job: Running) -> None: ...

    for hook in (generator, async_generator, Nothing):
        with pytest.raises(InvalidInput, match="decorate it with @contextmanager or @asynccontext"):
            app.around(hook)  # type: ignore[type-var]
    assert app.hooks.arounds == []


def test_a_plain_function_that_returns_no_context_manager_is_told_once(
    app: Tenure, caplog: pytest.LogCaptureFixture
) -> None:
    def surround(job: Running) -> int:
        return job.id

    app.around(surround)  # type: ignore[type-var]

    @app.task()
    async def on_loop() -> int:
        return 5

    @app.task()
    def in_thread() -> int:
        return 6

    with working(app):
        for _ in range(2):
            assert on_loop.enqueue().wait(timeout_seconds=30) == 5
            assert in_thread.enqueue().wait(timeout_seconds=30) == 6
    [line] = [r for r in caplog.records if "around hook" in r.getMessage()]
    assert "around hook surround returned 1, which is not a context manager" in line.getMessage()
    assert line.exc_info is None


class Entering:
    """Raises on the way in."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __enter__(self) -> None:
        raise self._error

    def __exit__(self, *_: object) -> None:
        raise AssertionError("it was never entered")


def raises_on_the_way_in(job: Running) -> Entering:
    return Entering(KeyError(job.id))


def exits_on_the_way_in(job: Running) -> Entering:
    return Entering(SystemExit(job.id))


@contextmanager
def raises_on_the_way_out(job: Running) -> Iterator[None]:  # noqa: ARG001
    yield
    raise KeyError("out")


@contextmanager
def exits_on_the_way_out(job: Running) -> Iterator[None]:  # noqa: ARG001
    try:
        yield
    finally:
        raise KeyboardInterrupt


@contextmanager
def swallows_everything(job: Running) -> Iterator[None]:  # noqa: ARG001
    with suppress(BaseException):
        yield


@contextmanager
def replaces_the_error(job: Running) -> Iterator[None]:  # noqa: ARG001
    try:
        yield
    except ValueError as error:
        raise KeyError("another") from error


@contextmanager
def yields_twice(job: Running) -> Iterator[None]:  # noqa: ARG001
    yield
    yield


def is_no_context_manager(job: Running) -> Any:  # noqa: ARG001
    return 5


def raises_at_once(job: Running) -> Any:
    raise LookupError(job.task)


BROKEN = [
    raises_on_the_way_in,
    exits_on_the_way_in,
    raises_on_the_way_out,
    exits_on_the_way_out,
    swallows_everything,
    replaces_the_error,
    yields_twice,
    is_no_context_manager,
    raises_at_once,
]


@pytest.mark.parametrize("broken", BROKEN)
def test_what_surrounds_a_job_cannot_break_it_or_hide_its_end(
    local: Tenure, broken: Callable[[Running], Any], caplog: pytest.LogCaptureFixture
) -> None:
    around: list[str] = []

    @contextmanager
    def good(job: Running) -> Iterator[None]:  # noqa: ARG001
        around.append("in")
        yield
        around.append("out")

    local.around(good)
    local.around(broken)
    local.around(good)

    @local.task()
    def works() -> int:
        return 7

    @local.task()
    async def works_too() -> int:
        await asyncio.sleep(0)
        return 8

    @local.task(max_attempts=1)
    def fails() -> None:
        raise ValueError("no such user")

    @local.task()
    def skips() -> None:
        raise Skip("nothing to do")

    with working(local):
        assert works.enqueue().wait(timeout_seconds=30) == 7
        assert works_too.enqueue().wait(timeout_seconds=30) == 8
        assert around == ["in", "in", "out", "out"] * 2  # the others are not affected
        failed = local.wait(fails.enqueue().id, timeout_seconds=30)
        skipped = local.wait(skips.enqueue().id, timeout_seconds=30)
    assert failed.state is State.FAILED
    assert failed.error is not None
    assert failed.error.message == "no such user"
    assert (skipped.state, skipped.reason) == (State.SKIPPED, "nothing to do")
    if broken is not swallows_everything:
        assert [record for record in caplog.records if record.name == "tenure.hooks"]


def test_a_timeout_ends_the_handler_and_what_surrounds_it(local: Tenure) -> None:
    ends: list[str] = []

    @local.around
    @contextmanager
    def surround(job: Running) -> Iterator[None]:  # noqa: ARG001
        try:
            yield
        except BaseException as error:
            ends.append(type(error).__name__)
            raise

    @local.task(timeout_seconds=0.05, max_attempts=1)
    async def sleeps() -> None:
        await asyncio.Event().wait()

    with working(local):
        assert local.wait(sleeps.enqueue().id, timeout_seconds=30).reason == "timeout"
    assert ends == ["CancelledError"]


# --- listeners ----------------------------------------------------------------------------------


def test_listeners_hear_every_kind_of_step(app: Tenure) -> None:
    events: list[JobEvent] = []
    app.listen(events.append)
    go_on: list[bool] = []

    @app.task(name="fails", max_attempts=2, retry=Fixed(0))
    def fails() -> None:
        raise ValueError("secret")

    @app.task(name="skips")
    def skips() -> Skip:
        return Skip("nothing to do")

    @app.task(name="cancels")
    def cancels() -> None:
        raise Cancel("superseded")

    @app.task(name="snoozes")
    def snoozes(job: Running) -> str | Snooze:
        return Snooze(0.01, "later") if job.token == 1 else "done"

    @app.task(name="retries")
    def retries(job: Running) -> str | Retry:
        return Retry("again", after_seconds=0.01) if job.attempt == 1 else "done"

    @app.task(name="released")
    async def released() -> None:
        go_on.append(True)
        await asyncio.Event().wait()

    with working(app, drain_seconds=0.1):
        for task in (fails, skips, cancels, snoozes, retries):
            app.wait(task.options(tenant="acme", queue="default").enqueue().id, timeout_seconds=30)
        released.enqueue()
        until(lambda: go_on)

    told: dict[str, list[tuple[str, str | None]]] = {}
    events.sort(key=lambda event: event.token)  # the next attempt may start before an end is told
    for event in events:
        told.setdefault(event.task, []).append((event.kind, event.reason))
    start = ("started", None)
    assert told == {
        "fails": [start, ("retried", "error"), start, ("failed", "error")],
        "skips": [start, ("skipped", "nothing to do")],
        "cancels": [start, ("cancelled", "superseded")],
        "snoozes": [start, ("snoozed", "later"), start, ("succeeded", None)],
        "retries": [start, ("retried", "again"), start, ("succeeded", None)],
        "released": [start, ("released", "shutdown")],
    }
    first, second, third, fourth = [event for event in events if event.task == "fails"]
    assert (first.token, first.attempt, third.token, third.attempt) == (1, 1, 2, 2)
    assert (first.tenant, first.queue, first.worker) == ("acme", "default", fourth.worker)
    assert first.duration_seconds is None
    assert second.duration_seconds is not None
    assert first.at <= second.at <= fourth.at
    assert first.at <= third.at <= fourth.at
    assert "secret" not in repr(events)


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3), KeyboardInterrupt()])
def test_a_listener_that_raises_is_logged_and_the_others_hear_it_still(
    local: Tenure, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    @local.listen
    def bad(event: JobEvent) -> None:  # noqa: ARG001
        raise error

    @local.listen
    def good(event: JobEvent) -> None:
        heard.append(event.kind)

    @local.task()
    async def work() -> int:
        return 7

    with working(local):
        assert work.enqueue().wait(timeout_seconds=30) == 7
        assert work.enqueue().wait(timeout_seconds=30) == 7
    assert heard == ["started", "succeeded"] * 2
    assert "listener failed" in caplog.text


# --- start and stop -----------------------------------------------------------------------------


def test_set_up_and_tear_down_may_be_async_and_come_in_order(app: Tenure) -> None:
    log: list[str] = []

    @app.on_start
    def first() -> None:
        log.append("first")

    @app.on_start
    async def second() -> None:
        await asyncio.sleep(0)
        log.append("second")

    @app.on_stop
    async def third() -> None:
        await asyncio.sleep(0)
        log.append("third")

    @app.on_stop
    def fourth() -> None:
        log.append("fourth")

    @app.task()
    def work() -> None:
        log.append("work")

    handle = work.enqueue()
    with working(app):
        handle.wait(timeout_seconds=30)
    assert log == ["first", "second", "work", "third", "fourth"]


def test_a_worker_that_cannot_set_up_does_not_start(app: Tenure) -> None:
    @app.on_start
    def connect() -> None:
        raise ConnectionError("no route")

    @app.task()
    def work() -> None: ...

    handle = work.enqueue()
    with pytest.raises(ConnectionError, match="no route"), working(app):
        pass
    assert app.get(handle.id).state is State.QUEUED
    assert app.workers() == []


def test_a_tear_down_that_fails_is_logged_and_nothing_is_lost(
    app: Tenure, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[str] = []

    @app.on_stop
    def broken() -> None:
        raise ConnectionError("gone already")

    @app.on_stop
    def good() -> None:
        log.append("good")

    @app.task()
    def work() -> int:
        return 7

    with caplog.at_level(logging.ERROR), working(app):
        assert work.enqueue().wait(timeout_seconds=30) == 7
    assert log == ["good"]
    assert "gone already" in caplog.text
    assert app.workers() == []


def test_hooks_are_still_what_they_were() -> None:
    """The decorators hand back what they got, so that it can be used and tested."""
    app = Tenure("sqlite:///never.db")

    def surround(job: Running) -> AbstractContextManager[None]:  # noqa: ARG001
        return nullcontext()

    def listen(event: JobEvent) -> None: ...

    def start() -> None: ...

    assert app.around(surround) is surround
    assert app.listen(listen) is listen
    assert app.on_start(start) is start
    assert app.on_stop(start) is start
