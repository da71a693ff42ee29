"""What a worker logs: a line per event that matters, with the job, and by default never values."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest

from tenure import Fixed, JobEvent, Running, Skip, Snooze, Tenure
from tenure.errors import StoreUnavailable
from tenure.rules.job import NewJob
from tenure.worker import events, process
from tenure.worker.settings import LogErrors
from tenure.worker.stores import Stores
from tests.worker import isolated
from tests.worker.support import (
    PATIENCE_SECONDS,
    Lines,
    ended,
    eventually,
    listen,
    working,
)

SECRET = "hunter2-and-other-secrets"


def facts_of(lines: Lines, id: int) -> list[dict[str, object]]:
    """What the lines about one job carry beside their text."""
    found = [getattr(record, "tenure", {}) for record in list(lines.records)]
    return [facts for facts in found if facts.get("job") == id]


def test_each_event_has_one_line_that_says_which_job_where(app: Tenure, lines: Lines) -> None:
    @app.task(queue="mail", max_attempts=2, retry=Fixed(0.01))
    async def fails() -> None:
        raise ValueError(SECRET)

    @app.task(queue="mail")
    async def skips() -> Skip | None:
        return Skip("nothing to do")

    @app.task(queue="mail")
    async def snoozes() -> Snooze | None:
        return Snooze(3600, "later")

    with working(app, {"mail": 0}) as worker:
        name = worker.name
        failing, skipping, snoozing = fails.enqueue(), skips.enqueue(), snoozes.enqueue()
        ended(app, failing.id)
        ended(app, skipping.id)
        eventually(lambda: lines.with_text("snoozed: later"))
        eventually(lambda: lines.with_text("failed: ValueError"))
        eventually(lambda: lines.with_text("skipped: nothing to do"))
    assert [facts["attempt"] for facts in facts_of(lines, failing.id)] == [1, 2]
    for id, task in ((failing.id, fails), (skipping.id, skips), (snoozing.id, snoozes)):
        for facts in facts_of(lines, id):
            assert facts["task"] == task.name
            assert (facts["queue"], facts["worker"]) == ("mail", name)
    [line] = lines.with_text("failed: ValueError")
    assert line.startswith(
        f"ERROR job {failing.id} of {fails.name} (queue mail, attempt 2, worker {name}): "
        "failed: ValueError, after "
    )
    assert line.endswith(f"; see `tenure get {failing.id}`")
    assert len(lines.with_text("retried: ValueError")) == 1
    assert not lines.with_text(SECRET)


def test_a_cancelled_job_is_called_so_once(app: Tenure, lines: Lines) -> None:
    began = threading.Event()

    @app.task()
    async def sleeps() -> None:
        began.set()
        await asyncio.sleep(600)

    with working(app):
        handle = sleeps.enqueue()
        assert began.wait(PATIENCE_SECONDS)
        handle.cancel()
        ended(app, handle.id)
        [line] = eventually(lambda: lines.with_text("): cancelled"))
    assert "): cancelled, after " in line


def test_jobs_that_run_alone_name_the_job_for_which_they_wait(app: Tenure, lines: Lines) -> None:
    """Both were on the leases of two workers that died."""
    began, go_on = threading.Event(), threading.Event()

    @app.task()
    def waits() -> None:
        began.set()
        go_on.wait(PATIENCE_SECONDS)

    now = app.about().now - timedelta(hours=1)
    ids = {waits.enqueue().id for _ in range(2)}
    for turn in range(2):
        at = now + timedelta(minutes=turn)
        app.store.claim("w1", {"default": 2}, lease_seconds=1, now=at)
        app.store.claim("w1", {"default": 2}, lease_seconds=1, now=at)
        app.store.sweep(now=at + timedelta(seconds=2))
    with working(app):
        assert began.wait(PATIENCE_SECONDS)
        [line, *_] = eventually(lambda: lines.with_text("died twice, so it waits for job "))
        go_on.set()
        [waiting] = [id for id in ids if f"job {id} of " in line]
        [running] = ids - {waiting}
        assert f"so it waits for job {running} to end, again in " in line
        ended(app, waiting)


def test_success_is_not_worth_a_line_unless_somebody_debugs(app: Tenure) -> None:
    @app.task()
    async def quick() -> None: ...

    kept = Lines()
    logger = logging.getLogger("tenure")
    logger.addHandler(kept)
    try:
        logger.setLevel(logging.INFO)
        with working(app):
            first = quick.enqueue()
            ended(app, first.id)
        assert not facts_of(kept, first.id)
        logger.setLevel(logging.DEBUG)
        with working(app):
            second = quick.enqueue()
            ended(app, second.id)
        assert len(facts_of(kept, second.id)) == 1
    finally:
        logger.removeHandler(kept)
        logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("errors", ["message", "traceback"])
def test_settings_say_how_much_of_an_error_is_logged(
    app: Tenure, lines: Lines, errors: LogErrors
) -> None:
    @app.task(max_attempts=2, retry=Fixed(0.01))
    async def fails() -> None:
        raise ValueError("no such customer")

    with working(app, log_errors=errors):
        ended(app, fails.enqueue().id)
        [retried] = eventually(lambda: lines.with_text("retried: ValueError: no such customer"))
        [failed] = eventually(lambda: lines.with_text("failed: ValueError: no such customer"))
    assert "Traceback" not in retried
    assert ("Traceback (most recent call last)" in failed) is (errors == "traceback")


@pytest.mark.parametrize("is_idle", [True, False])
def test_successes_have_a_line_each_on_request_and_thousands_are_counted(
    app: Tenure, lines: Lines, monkeypatch: pytest.MonkeyPatch, is_idle: bool
) -> None:
    """Also those of the last second, while the worker has nothing to do, or before it stops."""
    monkeypatch.setattr(events, "MAX_LINES", 3)

    @app.task()
    async def quick() -> None: ...

    logging.getLogger("tenure").setLevel(logging.INFO)
    with working(app, log_successes=True):
        handles = app.enqueue_many([quick.call() for _ in range(200)])
        for handle in handles:
            ended(app, handle.id)
        if is_idle:  # no other success brings it
            eventually(lambda: counted(lines) + len(lines.with_text("succeeded in ")) == 200)
    assert counted(lines) > 0
    assert lines.with_text("succeeded in ")
    assert counted(lines) + len(lines.with_text("succeeded in ")) == 200


def counted(lines: Lines) -> int:
    """How many successes the log has only counted."""
    return sum(int(line.split()[-4]) for line in lines.with_text("more jobs succeeded"))


def test_arguments_results_and_messages_of_errors_are_never_logged(
    app: Tenure, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever happens to a job, and whatever other libraries say."""
    caplog.set_level(logging.DEBUG)
    listen(app)
    go_on = threading.Event()

    @app.task(max_attempts=1)
    async def returns(secret: str) -> str:
        return secret

    @app.task(max_attempts=1)
    async def raises(secret: str) -> None:
        raise ValueError(secret)

    @app.task(max_attempts=1)
    def returns_nonsense(secret: str) -> object:
        return {secret: object()}

    @app.task(max_attempts=1, timeout_seconds=0.1)
    async def slow(secret: str) -> None:
        await asyncio.sleep(60 + len(secret))

    @app.task(max_attempts=1, timeout_seconds=0.1)
    def stuck(secret: str) -> str:
        go_on.wait(60)
        return secret

    @app.task(max_attempts=1)
    def saves(job: Running, secret: str) -> None:
        job.progress(0.5, secret)
        job.save({"secret": secret})

    @app.task(name="takes.numbers")
    async def numbers(number: int) -> None: ...

    tasks = (returns, raises, returns_nonsense, slow, stuck, saves)
    with working(app):
        handles = [task.enqueue(SECRET) for task in tasks]
        arguments = b'{"number": "' + SECRET.encode() + b'"}'
        bad, unknown = app.store.enqueue(
            [NewJob(task="takes.numbers", args=arguments), NewJob(task="no", args=arguments)]  # type: ignore[arg-type]
        )
        for handle in handles:
            ended(app, handle.id)
        eventually(lambda: (app.get(bad.id).reason or "").startswith("arguments do not"))
        eventually(lambda: app.get(unknown.id).reason == "no handler")
        go_on.set()
        eventually(lambda: lines.with_text("ended after it was given up"))
    assert len(lines.texts()) > 8
    assert not [text for text in lines.texts() if SECRET in text]
    assert SECRET not in caplog.text


@pytest.mark.slow
def test_children_do_not_log_arguments_either(
    children_app: Tenure, lines: Lines, capfd: pytest.CaptureFixture[str]
) -> None:
    with working(children_app, process_slots=1):
        handle = isolated.counts.enqueue(1234567890)
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == 1234567890
        ended(children_app, isolated.exit_now.enqueue(87).id)
    assert not lines.with_text("1234567890")
    assert "1234567890" not in capfd.readouterr().err


def test_failing_hooks_are_logged_and_break_nothing(app: Tenure, lines: Lines) -> None:
    @app.listen
    def breaks(event: JobEvent) -> None:
        raise RuntimeError(event.kind)

    @app.task()
    async def quick(secret: str) -> str:
        return secret

    with working(app):
        handle = quick.enqueue(SECRET)
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == SECRET
    assert lines.with_text("listener failed")
    assert not lines.with_text(SECRET)


def test_a_worker_serves_the_queues_of_its_tasks_without_a_warning(
    app: Tenure, lines: Lines
) -> None:
    @app.task(queue="mail")
    async def send() -> None: ...

    with working(app):
        send.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
    assert not lines.with_text("no task of its application uses that queue")


def test_a_worker_without_any_task_says_so(app: Tenure, lines: Lines) -> None:
    with working(app):
        [said] = eventually(lambda: lines.with_text("knows no task"))
    assert "import the modules that define tasks" in said


def test_a_worker_that_cannot_start_says_so_once(
    app: Tenure, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def fails_at_first(*args: Any) -> Stores:
        tries.append(1)
        if len(tries) <= 3:
            raise StoreUnavailable("there is no folder /x; create it first")
        return Stores(*args)

    monkeypatch.setattr(process, "Stores", fails_at_first)
    monkeypatch.setattr(process, "OPEN_PAUSE_SECONDS", 0.01)
    with working(app):
        eventually(app.workers)
    assert len(tries) == 4
    assert len(lines.with_text("cannot start, trying again")) == 1


def test_a_queue_to_which_no_task_goes_is_reported(app: Tenure, lines: Lines) -> None:
    """By the worker that serves it, and by `why` of a job that waits in the right queue."""

    @app.task(queue="mail")
    async def send() -> None: ...

    handle = send.enqueue()
    with working(app, {"mial": 0}):
        eventually(app.workers)
        assert "no worker serves" in app.why(handle.id)
    [said] = lines.with_text("no task of its application uses that queue")
    assert "mial" in said
    assert "its tasks use mail" in said
    [lost] = app.store.enqueue([NewJob(task=send.name, queue="mial")])
    with working(app, {"mial": 0}):
        app.wait(lost.id, timeout_seconds=PATIENCE_SECONDS)  # it is served
