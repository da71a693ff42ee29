"""`why` answers in words, for every situation."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tenure import Gate, Job, Retry, State, Task, Tenure
from tenure.errors import JobNotFound
from tenure.rules.job import NewJob, WorkerInfo
from tenure.rules.lifecycle import succeed
from tenure.rules.why import Facts, explain
from tenure.store.postgres.tx import PostgresTx
from tenure.store.session import Tx
from tenure.store.sqlite.tx import SQLiteTx
from tests.support.patience import until
from tests.support.working import working

WHEN = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


@pytest.fixture
def work(app: Tenure) -> Task[[], None]:
    @app.task(name="work", max_attempts=1)
    def work() -> None: ...

    return work


def matches(app: Tenure, id: int, pattern: str) -> bool:
    said = app.why(id)
    assert re.fullmatch(pattern, said), said
    return True


def test_no_worker_is_alive(app: Tenure, work: Task[[], None]) -> None:
    line = f"in queue default since {WHEN}; no worker is alive: start one( on /.+)?"
    assert matches(app, work.enqueue().id, line)


def test_no_worker_serves_the_queue(app: Tenure, work: Task[[], None]) -> None:
    with working(app, {"other": 1}):
        until(app.workers)
        line = f"in queue default since {WHEN}; no worker serves this queue: start one .*"
        assert matches(app, work.enqueue().id, line)


def test_no_worker_knows_the_task(app: Tenure, work: Task[[], None]) -> None:
    with Tenure(app.url) as old_code, working(old_code, {"default": 1, "x": 1}):
        until(app.workers)
        app.pause("x")  # or the worker would take it for a moment, and put it back for later
        handle = work.options(queue="x").enqueue()
        shown = app.whole_store.workers()
        running = msgspec.structs.replace(app.get(handle.id), queue_paused=False)
        said = explain(Facts(running, workers=shown))
        assert "; no worker there knows task work: start one with this code" in said
        app.resume("x")
        until(lambda: app.get(handle.id).state is State.SCHEDULED)
        put_back = (
            rf"due in \d s, at {WHEN} \(no handler\); the worker that took it does not know task"
        )
        assert matches(app, handle.id, f"{put_back} work: start one with this code")


def test_in_line_behind_others(app: Tenure, work: Task[[], None]) -> None:
    go_on = threading.Event()

    @app.task()
    def busy() -> None:
        go_on.wait(30)

    with working(app, {"default": 1}):
        first = busy.enqueue()
        until(lambda: app.get(first.id).state is State.RUNNING and app.workers())
        line = (
            rf"in queue default since {WHEN}; the only slot of queue default is taken by jobs of "
        )
        line += r"\S+busy \(1\); it is next"
        assert matches(app, work.enqueue().id, line)
        go_on.set()


def test_the_queue_is_paused(app: Tenure, work: Task[[], None]) -> None:
    handle = work.enqueue()
    app.pause("default")
    assert app.why(handle.id) == "queue default is paused; resume it to let its jobs run"
    app.pause("default", reason="the provider is down")
    assert app.why(handle.id) == (
        "queue default is paused (the provider is down); resume it to let its jobs run"
    )


def test_the_job_is_held(app: Tenure, work: Task[[], None]) -> None:
    handle = work.enqueue()
    app.hold(handle.id, reason="wrong address")
    assert app.why(handle.id) == "held (wrong address); unhold it to let it run"


def test_it_is_not_due_yet(app: Tenure, work: Task[[], None]) -> None:
    handle = work.options(delay_seconds=180).enqueue()
    assert matches(app, handle.id, f"due in 3 min, at {WHEN}")


def test_it_is_tried_again_later(app: Tenure) -> None:
    @app.task()
    def busy() -> None:
        raise Retry("the server is busy", after_seconds=7200)

    with working(app):
        handle = busy.enqueue()
        until(lambda: app.get(handle.id).state is State.SCHEDULED)
    assert matches(app, handle.id, rf"due in 2 h, at {WHEN} \(the server is busy\)")


def test_it_was_due_but_nobody_is_there(app: Tenure, work: Task[[], None]) -> None:
    """Workers put due jobs in line; without one a job stays scheduled."""
    handle = work.options(delay_seconds=60).enqueue()
    later = datetime.now(UTC) + timedelta(hours=1)
    assert "no worker is alive: start one" in app.why(handle.id, now=later)


def test_it_waits_for_its_parents(app: Tenure, work: Task[[], None]) -> None:
    parents = [work.enqueue(), work.enqueue()]
    child = work.options(parents=parents).enqueue()
    assert app.why(child.id) == "waiting for 2 unfinished parents"
    only = work.options(parents=parents[:1]).enqueue()
    assert app.why(only.id) == "waiting for 1 unfinished parent"


def test_it_runs_and_was_asked_to_stop(app: Tenure, work: Task[[], None]) -> None:
    handle = work.enqueue()
    app.whole_store.claim("worker-1", {"default": 1})
    assert matches(app, handle.id, f"running on worker-1 since {WHEN}")
    app.cancel(handle.id)
    assert matches(app, handle.id, f"running on worker-1 since {WHEN}; it was asked to stop")


def announced(app: Tenure, name: str, now: datetime) -> None:
    info = WorkerInfo(name=name, host="h", pid=1, queues={"default": 1}, tasks=("work",))
    app.whole_store.announce(info, now=now)


def test_its_worker_may_be_dead(app: Tenure, work: Task[[], None]) -> None:
    handle = work.enqueue()
    began = datetime.now(UTC)
    announced(app, "worker-1", began)
    app.whole_store.claim("worker-1", {"default": 1}, lease_seconds=30, now=began)

    def why(seconds: float) -> str:
        return app.why(handle.id, now=began + timedelta(seconds=seconds))

    running = f"running on worker-1 since {WHEN}"
    assert re.fullmatch(running, why(12)), why(12)
    late = "worker-1 was last seen 18 s ago; if it is dead, the job"
    assert re.fullmatch(f"{running}; {late} runs again after {WHEN}", why(18)), why(18)
    expired = "was running on worker-1, whose lease expired 107 s ago"
    assert why(137) == f"{expired}; no worker is alive to take it back: start one"
    app.cancel(handle.id)
    stop = f"{running}; it was asked to stop; {late} is cancelled after {WHEN}"
    assert re.fullmatch(stop, why(18)), why(18)
    announced(app, "worker-2", began + timedelta(seconds=137))
    assert why(137) == f"{expired}; another worker takes it back soon; it is cancelled then"
    with Tenure(app.url, tenant="acme") as acme:
        said = acme.why(handle.id, now=began + timedelta(seconds=137))
        assert said.startswith(expired)


def test_a_reason_that_repeats_the_state_is_left_out(app: Tenure, work: Task[[], None]) -> None:
    handle = work.enqueue()
    app.cancel(handle.id)
    assert app.get(handle.id).reason == "cancelled"
    assert matches(app, handle.id, f"cancelled at {WHEN}")


def test_it_is_finished(app: Tenure, work: Task[[], None]) -> None:
    @app.task(max_attempts=1)
    def fails() -> None:
        raise ValueError("no such user")

    with working(app):
        good, bad = work.enqueue(), fails.enqueue()
        app.wait(good.id, timeout_seconds=30)
        app.wait(bad.id, timeout_seconds=30)
    assert matches(app, good.id, f"succeeded at {WHEN}")
    assert matches(app, bad.id, rf"failed at {WHEN} \(error\): ValueError: no such user")
    gone = work.enqueue()
    app.cancel(gone.id, reason="the user left")
    assert matches(app, gone.id, rf"cancelled at {WHEN} \(the user left\)")


def test_there_is_no_such_job(app: Tenure) -> None:
    with pytest.raises(JobNotFound, match="there is no job 404"):
        app.why(404)


def test_a_tenant_learns_nothing_of_the_workers(app: Tenure, work: Task[[], None]) -> None:
    with Tenure(app.url, tenant="acme") as acme:
        [handle] = acme.enqueue_many([work.call()])
        assert matches(acme, handle.id, f"in queue default since {WHEN}")


Statements = list[tuple[Tx, str]]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Statements:
    """The statements that are run, each with its transaction."""
    seen: Statements = []
    for kind in (SQLiteTx, PostgresTx):
        monkeypatch.setattr(kind, "fetch", _noting(kind.fetch, seen))
    return seen


def _noting(fetch: Any, seen: Statements) -> Any:
    async def noting(tx: Tx, statement: str, **params: object) -> Any:
        seen.append((tx, statement))
        return await fetch(tx, statement, **params)

    return noting


def test_a_sentence_takes_four_statements_in_one_transaction_at_most(
    app: Tenure, work: Task[[], None], fetched: Statements
) -> None:
    @app.task(gate=Gate("narrow", max_running=1, rate=1000))
    def gated() -> None: ...

    running, waiting = gated.enqueue(), gated.enqueue()
    paused = work.options(queue="paused").enqueue()
    app.pause("paused", reason="the provider is down")
    later = work.options(delay_seconds=600).enqueue()
    app.whole_store.claim("w1", {"default": 1})
    plain = work.enqueue()
    tasks = (waiting._task.name, work.name)
    app.whole_store.announce(
        WorkerInfo(name="w1", host="h", pid=1, queues={"default": 1}, tasks=tasks)
    )
    in_line = ["get_job", "list_workers", "ahead_of_job", "running_tasks"]
    at_gate = ["get_job", "list_workers", "gate_of_job", "before_job"]
    expected = {
        waiting: ("waits at gate narrow: 1 of 1 running", at_gate),
        plain: ("in queue default", in_line),
        running: ("running on w1", ["get_job", "holders", "list_workers", "clock"]),
        paused: ("queue paused is paused (the provider is down)", ["get_job", "paused_queues"]),
        later: ("due in 10 min", ["get_job", "clock"]),
    }
    for handle, (words, statements) in expected.items():
        fetched.clear()
        assert app.why(handle.id).startswith(words)
        assert [statement for _, statement in fetched] == statements
        assert len({id(tx) for tx, _ in fetched}) == 1


def test_a_sentence_tells_of_one_moment(app: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process commits while the facts are read does not appear in them."""

    @app.task(gate=Gate("narrow", max_running=1))
    def gated() -> None: ...

    gated.enqueue()
    waiting = gated.enqueue()
    [lease] = app.whole_store.claim("w1", {"default": 1})
    app.whole_store.announce(
        WorkerInfo(name="w1", host="h", pid=1, queues={"default": 1}, tasks=(waiting._task.name,))
    )
    before = app.why(waiting.id)
    assert before == "waits at gate narrow: 1 of 1 running, 0 before it"

    def changing(fetch: Any) -> Any:
        async def change(tx: Tx, statement: str, **params: object) -> Any:
            rows = await fetch(tx, statement, **params)
            if statement == "get_job":
                monkeypatch.undo()
                app.whole_store.settle("w1", [succeed(job) for job in lease.jobs])
                app.set_gate("narrow", max_running=5)
                app.cancel(waiting.id)
            return rows

        return change

    for kind in (SQLiteTx, PostgresTx):
        monkeypatch.setattr(kind, "fetch", changing(kind.fetch))
    assert app.why(waiting.id) == before
    assert app.why(waiting.id).startswith("cancelled at ")


def test_a_job_at_a_gate_that_no_code_has_declared(app: Tenure) -> None:
    [job] = app.whole_store.enqueue([NewJob(task="t", gate="unknown")])
    app.whole_store.announce(
        WorkerInfo(name="w1", host="h", pid=1, queues={"default": 1}, tasks=("t",))
    )
    assert app.why(job.id) == "waits at gate unknown: 0 before it"


NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def job(**facts: Any) -> Job:
    defaults: dict[str, Any] = dict.fromkeys(Job.__struct_fields__)
    return Job(**defaults | {"queue": "q", "task": "t", "queued_at": NOW, "held": False} | facts)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "less than 1 s"),
        (1, "1 s"),
        (100, "100 s"),
        (180, "3 min"),
        (7199, "2 h"),
        (6000, "100 min"),
        (3 * 86_400, "3 days"),
    ],
)
def test_how_long_in_the_words_of_people(seconds: float, words: str) -> None:
    due = job(state=State.SCHEDULED, due_at=NOW + timedelta(seconds=seconds))
    assert explain(Facts(due, NOW)).startswith(f"due in {words}, at 2026-03-0")


def test_what_somebody_else_has_written_does_not_break_the_sentence() -> None:
    failed = job(state=State.FAILED, finished_at=NOW, error_json="not even JSON", reason="error")
    said = explain(Facts(failed, NOW))
    assert said == "failed at 2026-03-01 12:00:00 UTC (error): unknown: not even JSON"
    lost = job(state=State.RUNNING, worker=None, claimed_at=None, cancel_requested=False)
    assert explain(Facts(lost, NOW)) == "running on None since an unknown time"
