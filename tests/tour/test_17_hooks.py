"""What surrounds every job. Nothing here can break one: its failures are logged, no more."""

from collections.abc import Iterator
from contextlib import contextmanager

from tenure import JobEvent, Running, Tenure
from tests.support.working import working


def test_middleware_surrounds_each_attempt(app: Tenure) -> None:
    log: list[str] = []

    @app.around
    @contextmanager
    def timing(job: Running) -> Iterator[None]:
        log.append(f"before {job.task}")
        yield
        log.append(f"after {job.task}")

    @app.task(name="greet")
    def greet() -> None:
        log.append("hello")

    with working(app):
        greet.enqueue().wait(timeout_seconds=30)
    assert log == ["before greet", "hello", "after greet"]


def test_listeners_are_told_of_each_step(app: Tenure) -> None:
    events: list[JobEvent] = []
    app.listen(events.append)

    @app.task(name="greet")
    def greet() -> None: ...

    with working(app) as worker:
        handle = greet.enqueue()
        handle.wait(timeout_seconds=30)
    assert [event.kind for event in events] == ["started", "succeeded"]
    assert {(event.id, event.task, event.worker) for event in events} == {
        (handle.id, "greet", worker.name)
    }


def test_each_worker_process_can_set_up_and_tear_down(app: Tenure) -> None:
    log: list[str] = []

    @app.on_start
    async def connect() -> None:
        log.append("connect")

    @app.on_stop
    def disconnect() -> None:
        log.append("disconnect")

    @app.task()
    def work() -> None:
        log.append("work")

    with working(app):
        work.enqueue().wait(timeout_seconds=30)
    assert log == ["connect", "work", "disconnect"]
