"""What handlers do to their worker, by accident or on purpose."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tenure import Fixed, Handle, Job, Retry, Running, Snooze, State, Tenure, Unique, Until
from tenure.errors import InvalidInput, LeaseLost
from tenure.rules import lifecycle
from tenure.rules.claim import Claimed
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.rules.lifecycle import Settlement
from tenure.worker.running import attempt
from tests.support.plain import Plain
from tests.worker.conftest import Run
from tests.worker.scripts import station
from tests.worker.support import (
    PATIENCE_SECONDS,
    Lines,
    ended,
    eventually,
    kinds,
    working,
)


def error_of(job: Job) -> dict[str, str]:
    assert job.error is not None
    return job.error.as_dict()


def both(app: Tenure, body: Callable[[], Any], **options: Any) -> list[int]:
    """Enqueue the body as a coroutine and as a function in a thread."""

    @app.task(name="in.loop", **options)
    async def in_loop() -> Any:
        answer = body()
        return await answer if isinstance(answer, Awaitable) else answer

    @app.task(name="in.thread", **options)
    def in_thread() -> Any:
        return body()

    return [in_loop.enqueue().id, in_thread.enqueue().id]


def goes_on(app: Tenure) -> None:
    """The worker still works, with both kinds of handlers."""
    for id in both_again(app):
        assert ended(app, id).state is State.SUCCEEDED


def both_again(app: Tenure) -> list[int]:
    enqueued = app.store.enqueue(
        [NewJob(task="check.loop"), NewJob(task="check.thread")]
    )  # registered by `with_checks`
    return [one.id for one in enqueued]


@pytest.fixture
def with_checks(app: Tenure) -> Tenure:
    """The application with two harmless tasks, to see whether its worker goes on."""

    @app.task(name="check.loop")
    async def check_loop() -> None: ...

    @app.task(name="check.thread")
    def check_thread() -> None: ...

    return app


# --- what they raise ------------------------------------------------------------------------------


class Worse(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize(
    "kind",
    [SystemExit, KeyboardInterrupt, GeneratorExit, Worse, MemoryError, RecursionError],
)
def test_base_exceptions_fail_the_attempt_and_not_the_worker(
    with_checks: Tenure, lines: Lines, kind: type[BaseException]
) -> None:
    app = with_checks

    def body() -> None:
        raise kind("out")

    ids = both(app, body, max_attempts=1)
    with working(app):
        for id in ids:
            job = ended(app, id)
            assert (job.state, job.reason, job.attempts) == (State.FAILED, "error", 1)
            assert error_of(job)["type"].endswith(kind.__name__)
            assert "raise kind" in error_of(job)["traceback"]
        assert not lines.with_text("the worker failed")
        goes_on(app)


def test_a_cancellation_that_nobody_asked_for_is_tried_again(with_checks: Tenure) -> None:
    app = with_checks

    @app.task(max_attempts=2, retry=Fixed(0.01))
    async def cancelled(job: Running) -> str:
        if job.attempt == 1:
            raise asyncio.CancelledError("a library's own")
        return "second"

    @app.task(max_attempts=2, retry=Fixed(0.01))
    async def cancels_itself(job: Running) -> str:
        if job.attempt == 1:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        return "second"

    with working(app):
        for handle in (cancelled.enqueue(), cancels_itself.enqueue()):
            assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "second"
        goes_on(app)


def test_a_late_cancellation_does_not_stop_other_jobs(with_checks: Tenure) -> None:
    """A handler leaves something behind that cancels the task it ran in, long after its end."""
    app = with_checks

    @app.task()
    async def leaves_a_trap(seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_later(seconds, task.cancel)

    with working(app, async_slots=1):
        for seconds in (0.0, 0.01, 0.1):
            handle = leaves_a_trap.enqueue(seconds)
            assert ended(app, handle.id).state is State.SUCCEEDED
            for _ in range(5):
                goes_on(app)


@pytest.mark.slow
def test_exits_in_tasks_of_a_handler_do_not_end_the_worker(app: Tenure, run_script: Run) -> None:
    script = run_script("station")
    script.wait_for("serves")
    job = ended(app, station_job(app, "subtask_exits"))
    assert (job.state, error_of(job)["type"]) == (State.FAILED, "SystemExit")
    assert ended(app, station_job(app, "quick")).state is State.SUCCEEDED
    assert "the worker continues" in script.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "deed"),
    [
        ("stops_loop", "stop the event loop"),
        ("closes_loop", "close the event loop"),
        ("cancels_all", "cancel a task"),
    ],
)
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_handler_cannot_end_the_event_loop(
    app: Tenure, run_script: Run, tmp_path: Path, how: str, deed: str, processes: str
) -> None:
    """It uses up its own attempts. Other jobs of one attempt succeed, and no process dies."""
    gate = tmp_path / "gate"
    script = run_script("station", processes)
    script.wait_for("serves", times=int(processes))
    others = [station_job(app, "held_async", gate=str(gate), max_attempts=1) for _ in range(6)]
    script.wait_for("attempt 1", times=len(others))
    culprit = station_job(app, how)
    job = ended(app, culprit)
    assert (job.state, job.attempts, job.crashes) == (State.FAILED, 2, 0)
    assert error_of(job)["type"] == "tenure.errors.LoopMisused"
    assert script.output.count(f"job {culprit} of station.{how} tried to {deed} of its worker") == 2
    if how == "cancels_all" and processes == "1":  # of two, the culprit's may run no other job
        script.wait_for(f"released: cancelled by the handler of job {culprit}")
    gate.touch()
    for id in others:
        assert ended(app, id).state is State.SUCCEEDED
    assert ended(app, station_job(app, "quick")).state is State.SUCCEEDED
    assert "a new one starts" not in script.output
    script.signal(signal.SIGTERM)
    assert script.ends() == 0


def station_job(app: Tenure, task: str, *, max_attempts: int | None = None, **args: object) -> int:
    """Enqueue a job of the script."""
    found = station.app.find(f"tests.worker.scripts.station.{task}")
    assert found is not None
    attempts = max_attempts or found.options_of_task.max_attempts
    new = NewJob(task=f"station.{task}", args=encode(args), max_attempts=attempts)
    return app.store.enqueue([new])[0].id


# --- the death of the worker ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "how"),
    [
        ("sqlite", "segfault"),
        ("sqlite", "exit_now"),
        ("postgres", "killed"),
    ],
    indirect=["url"],
)
@pytest.mark.slow
def test_a_handler_that_kills_its_worker_is_found_and_its_siblings_live(
    app: Tenure, run_script: Run, how: str
) -> None:
    """In the worker's own process: the lease expires; each crash is counted and on record.

    A sibling that has started is charged for the deaths at which nobody could know who was guilty.
    """
    siblings = [station_job(app, "slow_async", seconds=0.2) for _ in range(2)]
    killer = station_job(app, how)
    siblings += [station_job(app, "slow_async", seconds=0.2) for _ in range(2)]
    for _ in range(8):
        script = run_script("station")
        while script.process.poll() is None and not all_done(app, [killer, *siblings]):
            time.sleep(0.02)
        if script.process.poll() is None:
            break
    job = app.get(killer)
    assert (job.state, job.reason) == (State.FAILED, "lease lost")
    assert job.attempts == 3
    assert job.crashes >= job.attempts
    for id in siblings:
        sibling = ended(app, id)
        assert sibling.state is State.SUCCEEDED, kinds(app, id)
        assert sibling.attempts <= 1 + 2


def all_done(app: Tenure, ids: list[int]) -> bool:
    return all(app.get(id).state.final for id in ids)


# --- results and answers that make no sense -------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [object(), float("nan"), "a\0b", "\ud800", b"x" * 2_000_000, lambda: None, {1: 2}],
    ids=["object", "nan", "nul", "surrogate", "huge", "function", "key"],
)
def test_a_result_that_cannot_be_stored_fails_the_job(app: Tenure, value: object) -> None:
    ids = both(app, lambda: value, max_attempts=3)
    with working(app):
        for id in ids:
            job = ended(app, id)
            assert (job.state, job.reason) == (State.FAILED, "the result cannot be stored")
            assert job.attempts == 1
            assert f"the result of {job.task}" in (job.error_json or "")


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["raise", "return"])
def test_answers_that_are_not_what_they_should_be_fail_in_words(
    with_checks: Tenure, ending: str
) -> None:
    app = with_checks

    class Careless(Retry):
        def __init__(self) -> None:
            """Forgets what a Retry has."""

    class Wrong(Snooze):
        def __init__(self) -> None:
            super().__init__(5)
            self.seconds = "soon"  # type: ignore[assignment]

    class Odd(Retry):
        def __init__(self) -> None:
            super().__init__()
            self.reason = None  # type: ignore[assignment]

    for kind in (Careless, Wrong, Odd):
        number = 0

        def body(kind: type[BaseException] = kind) -> object:
            if ending == "raise":
                raise kind
            return kind()

        number += 1
        for name in ("in.loop", "in.thread"):
            app._tasks.pop(name, None)
        ids = both(app, body, max_attempts=1)
        with working(app):
            for id in ids:
                assert ended(app, id).state is State.FAILED
            goes_on(app)


@pytest.mark.slow
def test_a_retry_policy_that_fails_leaves_the_failure_on_record(
    with_checks: Tenure, lines: Lines
) -> None:
    app = with_checks

    def raises(attempts: int) -> float:
        raise RuntimeError(f"after {attempts}")

    def exits(attempts: int) -> float:
        raise SystemExit(attempts)

    def nonsense(attempts: int) -> float:
        return str(attempts)  # type: ignore[return-value]

    def nan(attempts: int) -> float:
        return float("nan") * attempts

    for number, policy in enumerate((raises, exits, nonsense, nan)):

        @app.task(name=f"fails.{number}", retry=policy, max_attempts=2)
        async def fails() -> None:
            raise ValueError("the failure itself")

    with working(app):
        for number in range(4):
            [one] = app.store.enqueue([NewJob(task=f"fails.{number}", max_attempts=2)])
            job = ended(app, one.id)
            assert (job.state, job.attempts) == (State.FAILED, 2)
            assert error_of(job)["message"] == "the failure itself"
        goes_on(app)
    assert len(lines.with_text("the retry policy of")) >= 4


def test_a_handler_that_says_its_lease_is_lost_does_not_keep_its_job_for_ever(
    app: Tenure,
) -> None:
    """It is not: the worker holds it. The attempt has failed, and says why."""

    def body() -> None:
        raise LeaseLost("so it thinks")

    ids = both(app, body, max_attempts=2, retry=Fixed(0.01))
    with working(app):
        for id in ids:
            job = ended(app, id)
            assert (job.state, job.attempts) == (State.FAILED, 2)
            assert error_of(job)["type"] == "tenure.errors.LeaseLost"


# --- what they break ------------------------------------------------------------------------------


def test_a_handler_that_closes_the_application_is_refused(with_checks: Tenure) -> None:
    app = with_checks
    ids = both(app, app.close, max_attempts=1)

    @app.task(max_attempts=1)
    async def closes() -> None:
        await app.close_async()

    with working(app):
        ids.append(closes.enqueue().id)
        for id in ids:
            job = ended(app, id)
            assert error_of(job)["type"] == "tenure.errors.InvalidInput"
            assert "stop it first" in error_of(job)["message"]
        goes_on(app)


@pytest.mark.slow
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_connections_that_are_cut_are_opened_again(with_checks: Tenure, url: str) -> None:
    app = with_checks

    backends = "select count(*) from pg_stat_activity where datname = current_database()"

    @app.task(max_attempts=1)
    def cuts() -> int:
        with psycopg.connect(url, autocommit=True) as connection:
            cut = connection.execute(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            ).fetchone()
        assert cut is not None
        return int(cut[0])

    with working(app):
        for _ in range(3):
            goes_on(app)  # so that it has settled something
            with Plain(url) as plain:  # claim, settle, heartbeat, bell; and this one
                eventually(lambda plain=plain: plain.one(backends) >= 5)  # type: ignore[misc]
            handle = cuts.enqueue()
            assert handle.wait(timeout_seconds=PATIENCE_SECONDS) >= 4
            goes_on(app)


@pytest.mark.slow
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_store_closed_under_the_worker_ends_it_loudly(app: Tenure, lines: Lines) -> None:
    @app.task(max_attempts=1)
    def closes() -> None:
        app.whole_store.close()

    with pytest.raises(InvalidInput, match="closed"), working(app):  # noqa: PT012
        closes.enqueue()
        eventually(lambda: lines.with_text("cannot continue"))


@pytest.mark.slow
def test_signal_handlers_that_were_replaced_come_back(app: Tenure, run_script: Run) -> None:
    import signal

    script = run_script("station")
    script.wait_for("serves")
    station_job(app, "replaces_signals")
    script.wait_for("the signal handler of SIGTERM was replaced; restored")
    script.signal(signal.SIGTERM)
    assert script.ends() == 0
    assert "returned" in script.output


@pytest.mark.slow
@pytest.mark.parametrize("task", ["forks", "forks_in_thread"])
def test_a_fork_does_not_become_a_second_worker(app: Tenure, run_script: Run, task: str) -> None:
    script = run_script("station")
    script.wait_for("serves")
    job = ended(app, station_job(app, task))
    assert job.state is State.SUCCEEDED
    assert job.result is not None
    forked = int(job.result)
    assert forked > 0
    eventually(lambda: not Path(f"/proc/{forked}/cmdline").read_bytes())  # a zombie: it has ended
    for _ in range(5):
        done = ended(app, station_job(app, "quick"))
        assert done.result_json == str(script.pid)


# --- tasks and arguments that do not fit ----------------------------------------------------------


@pytest.mark.slow
def test_an_unknown_task_goes_back_uncharged_later_and_later(
    app: Tenure, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (attempt.UNKNOWN_TASK_FIRST_SECONDS, attempt.UNKNOWN_TASK_LAST_SECONDS) == (5.0, 300.0)
    monkeypatch.setattr(attempt, "UNKNOWN_TASK_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(attempt, "UNKNOWN_TASK_LAST_SECONDS", 0.5)
    delays: list[float] = []

    def unknown_task(job: Claimed, delay_seconds: float, give_up_seconds: float) -> Settlement:
        delays.append(delay_seconds)
        assert give_up_seconds == 7 * 86_400
        return lifecycle.unknown_task(job, delay_seconds, give_up_seconds)

    stub = SimpleNamespace(**{**vars(lifecycle), "unknown_task": unknown_task})
    monkeypatch.setattr(attempt, "lifecycle", stub)

    @app.task()
    async def known() -> str:
        return "known"

    [unknown] = app.store.enqueue([NewJob(task="of.tomorrow")])
    with working(app):
        eventually(lambda: len(delays) >= 8)
        assert known.enqueue().wait(timeout_seconds=PATIENCE_SECONDS) == "known"
        assert "no handler" in eventually(lambda: why_scheduled(app, unknown.id))
    job = app.get(unknown.id)
    assert (job.state.final, job.attempts, job.crashes, job.reason) == (False, 0, 0, "no handler")
    assert delays[:8] == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]
    assert [event.kind for event in app.timeline(unknown.id)].count("unknown_task") == 1
    assert lines.with_text("this worker has no such task; put back")


def test_a_task_that_no_worker_has_fails_the_job_in_the_end(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "UNKNOWN_TASK_FIRST_SECONDS", 0.01)
    monkeypatch.setattr(attempt, "UNKNOWN_TASK_LAST_SECONDS", 0.05)
    [unknown] = app.store.enqueue([NewJob(task="of.yesterday")])
    with working(app, unknown_task_seconds=0.2):
        job = ended(app, unknown.id)
    assert (job.state, job.reason, job.attempts) == (State.FAILED, "no worker has its task", 0)
    assert job.error is not None
    assert job.error.type == "UnknownTask"


def why_scheduled(app: Tenure, id: int) -> str | None:
    """The answer of `why`, if the job waits for its time just now."""
    return why if (why := app.why(id)).startswith("due") else None


def delays_of(app: Tenure, id: int) -> list[float]:
    """The delays with which the job was put back."""
    details = [event.detail or "" for event in app.timeline(id) if event.kind == "released"]
    return [float(json.loads(detail)["delay_seconds"]) for detail in details]


def test_another_worker_that_knows_the_task_runs_it(app: Tenure, url: str) -> None:
    [enqueued] = app.store.enqueue([NewJob(task="of.tomorrow")])
    with working(app):
        eventually(lambda: app.get(enqueued.id).state is State.SCHEDULED)
    with Tenure(url) as newer:

        @newer.task(name="of.tomorrow")
        async def tomorrow() -> None: ...

        newer.move(enqueued.id, due_at=newer.get(enqueued.id).created_at)
        with working(newer):
            assert ended(newer, enqueued.id).state is State.SUCCEEDED


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_arguments_that_do_not_fit_wait_for_a_deploy_and_then_fail(
    app: Tenure, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "UNKNOWN_TASK_FIRST_SECONDS", 0.01)
    if kind == "async":

        @app.task(name="of.today", max_attempts=2)
        async def today(number: int) -> int:
            return number
    else:

        @app.task(name="of.today", max_attempts=2)
        def today(number: int) -> int:
            return number

    bad = NewJob(task="of.today", args=encode({"number": "twelve"}), max_attempts=2)
    id = app.store.enqueue([bad])[0].id
    with working(app):
        job = ended(app, id)
        assert delays_of(app, id) == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32]
        assert (job.state, job.reason, job.attempts) == (State.FAILED, "arguments do not fit", 1)
        assert "number" in error_of(job)["message"]
        assert app.replay(id)
        assert ended(app, id).state is State.FAILED


def test_the_first_arguments_of_a_task_that_do_not_fit_are_a_warning(
    app: Tenure, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "UNKNOWN_TASK_FIRST_SECONDS", 0.01)

    @app.task(name="of.today")
    async def today(number: int) -> None: ...

    bad = NewJob(task="of.today", args=encode({}))
    id = app.store.enqueue([bad])[0].id
    with working(app):
        ended(app, id)
    told = [r for r in lines.records if "arguments do not fit this code" in r.getMessage()]
    assert [r.levelname for r in told] == ["WARNING"] + ["INFO"] * 5


# --- their own unique keys ------------------------------------------------------------------------


def test_a_handler_that_enqueues_its_own_unique_job_is_told_so(app: Tenure) -> None:
    seen: dict[str, tuple[int, bool]] = {}

    @app.task()
    async def again(job: Running) -> int:
        handle = await again.options(key="only one").enqueue_async()
        seen["finished"] = handle.id, handle.created
        return job.id

    with working(app):
        handle: Handle[Any] = again.options(key="only one").enqueue()
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == handle.id
    assert seen == {"finished": (handle.id, False)}
    assert app.count_live() == []


def test_a_key_held_until_started_is_free_for_the_handler(app: Tenure) -> None:
    unique = Unique(key="one in line", until=Until.STARTED)
    runs: list[int] = []

    @app.task()
    def again(job: Running) -> None:
        runs.append(job.id)
        if len(runs) < 3:
            assert again.options(unique=unique).enqueue().created

    with working(app):
        again.options(unique=unique).enqueue()
        eventually(lambda: len(runs) == 3 and not app.count_live())
    assert len(set(runs)) == 3


# --- without an end -------------------------------------------------------------------------------


def test_endless_snoozing_is_visible_and_holds_up_nobody(app: Tenure) -> None:
    @app.task(max_attempts=1)
    async def later() -> Snooze | None:
        return Snooze(0, "not yet")

    @app.task()
    async def quick() -> str:
        return "quick"

    with working(app, async_slots=1):
        handle = later.enqueue()
        eventually(lambda: app.get(handle.id).token > 30)
        assert quick.enqueue().wait(timeout_seconds=PATIENCE_SECONDS) == "quick"
        app.cancel(handle.id)
        job = ended(app, handle.id)
    assert (job.state, job.attempts) == (State.CANCELLED, 0)
    assert kinds(app, handle.id).count("snoozed") >= 30


def test_retry_later_is_charged_and_ends(app: Tenure) -> None:
    runs: list[int] = []

    @app.task(max_attempts=10)
    def later(job: Running) -> None:
        runs.append(job.attempt)
        raise Retry("not yet", after_seconds=0)

    with working(app):
        job = ended(app, later.enqueue().id)
    assert (job.state, job.attempts, job.reason) == (State.FAILED, 10, "not yet")
    assert runs == list(range(1, 11))


# --- neighbours -----------------------------------------------------------------------------------


def test_what_a_handler_leaves_in_its_context_is_not_seen_by_the_next(app: Tenure) -> None:
    from contextvars import ContextVar

    whose: ContextVar[str] = ContextVar("whose", default="nobody")

    @app.task()
    async def in_loop(name: str) -> str:
        before = whose.get()
        whose.set(name)
        return before

    @app.task()
    def in_thread(name: str) -> str:
        before = whose.get()
        whose.set(name)
        return before

    with working(app, async_slots=1, thread_slots=1):
        for task in (in_loop, in_thread):
            for name in ("ann", "bob", "carl"):
                assert task.enqueue(name).wait(timeout_seconds=PATIENCE_SECONDS) == "nobody"


def test_a_handler_that_raises_after_it_is_over_disturbs_nobody(with_checks: Tenure) -> None:
    """Threads and tasks that handlers leave behind are their own affair."""
    app = with_checks
    done = threading.Event()

    @app.task()
    async def leaves_a_task() -> None:
        async def later() -> None:
            await asyncio.sleep(0.01)
            done.set()

        task = asyncio.create_task(later())
        assert not task.done()

    with working(app):
        assert ended(app, leaves_a_task.enqueue().id).state is State.SUCCEEDED
        assert done.wait(PATIENCE_SECONDS)
        goes_on(app)
