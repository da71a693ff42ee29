"""A loop of one's own: claim, work, settle, with heartbeats behind one's back."""

# ruff: noqa: PT012 - what is tested is a block

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenure import AsyncClaimer, Claimer, FailedJob, Housework, State, Tenure
from tenure.claiming import AsyncClaimedJob, ClaimedJob, core, counting, housekeeping
from tenure.errors import (
    ClockDoubted,
    InvalidInput,
    JobNotFound,
    LeaseLost,
    StoreUnavailable,
)
from tenure.rules.job import NewJob
from tenure.rules.lifecycle import AT_MOST_ONCE
from tenure.store.api import run_on
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.plain import Plain


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of each kind."""
    if request.param == "postgres":
        return str(request.getfixturevalue("pg_migrated_url"))
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def app(url: str) -> Iterator[Tenure]:
    """An application with two tasks."""
    application = Tenure(url)
    with application:

        @application.task(name="audio", queue="media", max_attempts=3)
        def audio(file: str, speed: float = 1.0) -> None: ...

        @application.task(name="mail")
        def mail(to: str) -> None: ...

        yield application


def enqueue(app: Tenure, task: str, **options: Any) -> int:
    found = app.find(task)
    assert found is not None
    first = "a.wav" if task == "audio" else "me"
    return found.options(**options).enqueue(first).id


def leases(url: str) -> int:
    with Plain(url) as plain:
        return int(plain.one("select count(*) from tenure.lease"))


def test_claim_work_and_settle(app: Tenure, url: str) -> None:
    """Seen failing when a lease stayed after its last job: a loop left one row per job."""
    ids = [enqueue(app, "audio", metadata={"user": 7}) for _ in range(3)]
    with Claimer(app, "media") as claimer:
        for id in ids:
            job = claimer.claim_one()
            assert job is not None
            assert (job.id, job.task, job.queue, job.attempt) == (id, "audio", "media", 1)
            assert (job.max_attempts, job.crashes, job.tenant, job.priority) == (3, 0, "", 0)
            assert job.args == {"file": "a.wav"}
            assert job.metadata == {"user": 7}
            assert claimer.held() == [job]
            assert [x.jobs[0].id for x in app.store.held(claimer.worker)] == [id]
            job.succeed({"seconds": 12.5, "at": datetime(2026, 1, 1, tzinfo=UTC)})
            assert claimer.held() == []
        assert claimer.claim_one() is None
        assert leases(url) == 0
    done = app.get(ids[0])
    assert (done.state, done.worker) == (State.SUCCEEDED, claimer.worker)
    assert done.result == {"seconds": 12.5, "at": "2026-01-01T00:00:00Z"}
    assert done.duration_seconds is not None


ENDS: dict[str, tuple[Callable[[Any], Any], State, str | None, int]] = {
    "succeed": (lambda job: job.succeed(), State.SUCCEEDED, None, 1),
    "fail": (lambda job: job.fail(ValueError("boom"), reason="bad"), State.FAILED, "bad", 1),
    "fail with a text": (lambda job: job.fail("boom"), State.FAILED, "error", 1),
    "retry": (lambda job: job.retry("boom", after_seconds=60), State.SCHEDULED, "error", 1),
    "retry by policy": (lambda job: job.retry(ValueError("boom")), State.SCHEDULED, "error", 1),
    "snooze": (lambda job: job.snooze(60), State.SCHEDULED, "snoozed", 0),
    "skip": (lambda job: job.skip("seen before"), State.SKIPPED, "seen before", 1),
    "cancel": (lambda job: job.cancel(), State.CANCELLED, "cancelled", 0),
    "release": (lambda job: job.release(), State.QUEUED, "released", 0),
}


@pytest.mark.parametrize("how", ENDS)
def test_every_way_to_end_a_job(app: Tenure, url: str, how: str) -> None:
    end, state, reason, attempts = ENDS[how]

    async def in_async(id: int) -> None:
        async with app, AsyncClaimer(app, "other") as claimer:
            job = await claimer.claim_one(wait_seconds=10)
            assert isinstance(job, AsyncClaimedJob)
            assert job.id == id
            await end(job)
            assert claimer.held() == []

    one = enqueue(app, "audio")
    with Claimer(app, "media") as claimer:
        job = claimer.claim_one()
        assert isinstance(job, ClaimedJob)
        end(job)
    two = enqueue(app, "audio", queue="other")
    asyncio.run(in_async(two))
    for id in (one, two):
        seen = app.get(id)
        assert (seen.state, seen.reason, seen.attempts) == (state, reason, attempts)
        assert (seen.error is not None) == (how.startswith(("fail", "retry")))
    assert leases(url) == 0


def test_a_job_is_ended_once(app: Tenure) -> None:
    id = enqueue(app, "mail")
    with Claimer(app) as claimer:
        [job] = claimer.claim()
        job.succeed(1)
        job.succeed(1)  # says the same
        with pytest.raises(LeaseLost):
            job.succeed(2)
        with pytest.raises(LeaseLost):
            job.fail("no")
    assert app.get(id).result == 1


def test_queues_are_served_as_they_are_named_or_in_one_order(app: Tenure) -> None:
    media = [enqueue(app, "audio", priority=n) for n in (5, -5)]
    mails = [enqueue(app, "mail") for _ in range(2)]
    with Claimer(app, ["default", "media"]) as claimer:
        jobs = claimer.claim(3)
        assert [job.id for job in jobs] == [*mails, media[1]]
        for job in jobs:
            job.release()
    with Claimer(app, ["default", "media"], in_order=True) as claimer:
        assert [job.id for job in claimer.claim(4)] == [media[1], *mails, media[0]]


def test_only_the_named_tasks(app: Tenure) -> None:
    mail = enqueue(app, "mail")
    audio = enqueue(app, "audio", queue="default")
    task = app.find("audio")
    assert task is not None
    with Claimer(app, tasks=[task]) as claimer:
        assert [job.id for job in claimer.claim(5)] == [audio]
        assert claimer.claim_one() is None
    with Claimer(app, tasks=["mail"]) as claimer:
        assert [job.id for job in claimer.claim(5)] == [mail]


def test_arguments_as_a_type(app: Tenure) -> None:
    @dataclass
    class Audio:
        file: str
        speed: float = 1.0

    enqueue(app, "audio")
    with Claimer(app, "media") as claimer:
        [job] = claimer.claim()
        assert job.args_as(Audio) == Audio("a.wav")


def test_heartbeats_keep_the_job_and_never_shorten_its_lease(app: Tenure) -> None:
    id = enqueue(app, "mail")
    with Claimer(app, lease_seconds=600, heartbeat_seconds=0.05) as claimer:
        [job] = claimer.claim()
        first = app.get(id).expires_at
        assert first is not None
        until(lambda: (app.get(id).expires_at or first) > first)
        assert not job.lost
        job.succeed()


def test_a_lost_lease_is_told_and_nothing_is_written(app: Tenure) -> None:
    """Seen failing without the heartbeat's word: the flag stayed false."""
    id = enqueue(app, "mail")
    with Claimer(app, heartbeat_seconds=0.05, lease_seconds=60, housekeeping=False) as claimer:
        [job] = claimer.claim()
        app.store.sweep(now=datetime.now(UTC) + timedelta(days=1))
        assert job.lost.wait(PATIENCE_SECONDS)
        assert claimer.held() == []
        with pytest.raises(LeaseLost):
            job.succeed()
    seen = app.get(id)
    assert (seen.state, seen.crashes) == (State.QUEUED, 1)


def test_a_lease_that_cannot_be_renewed_is_lost_in_time(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueue(app, "mail")

    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    with Claimer(app, lease_seconds=0.5, heartbeat_seconds=0.05) as claimer:
        [job] = claimer.claim()
        monkeypatch.setattr(claimer._core.heartbeats._store, "extend", away, raising=False)
        assert job.lost.wait(PATIENCE_SECONDS)


def test_a_cancel_request_is_told(app: Tenure) -> None:
    id = enqueue(app, "mail")
    with Claimer(app, heartbeat_seconds=0.05) as claimer:
        [job] = claimer.claim()
        assert app.cancel(id) is State.RUNNING
        assert job.cancelled.wait(PATIENCE_SECONDS)
        job.cancel()
    assert app.get(id).state is State.CANCELLED


def test_what_is_left_goes_back_uncharged(app: Tenure, url: str) -> None:
    ids = [enqueue(app, "mail") for _ in range(3)]
    with pytest.raises(ZeroDivisionError), Claimer(app) as claimer:
        done, *_ = claimer.claim(3)
        done.succeed()
        raise ZeroDivisionError
    assert [app.get(id).state for id in ids] == [State.SUCCEEDED, State.QUEUED, State.QUEUED]
    assert app.get(ids[1]).attempts == 0
    assert leases(url) == 0


def fail_for(monkeypatch: pytest.MonkeyPatch, name: str, queue: str | None = None) -> None:
    """Let this operation of claimers fail, for one queue only if it is given."""
    real = getattr(core, name)

    async def fails(scope: Any, worker: str, what: Any, **options: Any) -> Any:
        if queue is None or queue in what:
            raise StoreUnavailable("away for a moment")
        return await real(scope, worker, what, **options)

    monkeypatch.setattr(core, name, fails)


def test_what_is_claimed_is_returned_if_the_next_queue_cannot_be_reached(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen failing when the leases were noted after the last claim: the job was charged."""
    id = enqueue(app, "audio")
    with Claimer(app, ["media", "default"], housekeeping=False) as claimer:
        fail_for(monkeypatch, "claim", "default")
        assert [job.id for job in claimer.claim(2)] == [id]
        assert [job.id for job in claimer.held()] == [id]
        with pytest.raises(StoreUnavailable):
            claimer.claim(2)
    assert (app.get(id).state, app.get(id).attempts) == (State.QUEUED, 0)


def test_a_job_whose_start_cannot_be_written_is_for_the_next_claim(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen failing when a failed start lost the whole lease."""
    jobs = [NewJob(task="mail"), NewJob(task="pay", at_most_once=True), NewJob(task="mail")]
    ids = [each.id for each in app.store.enqueue(jobs)]
    with Claimer(app, housekeeping=False) as claimer:
        with monkeypatch.context() as patch:
            fail_for(patch, "start_once")
            assert [job.id for job in claimer.claim(3)] == ids[:1]
            with pytest.raises(StoreUnavailable):
                claimer.claim(3)
            assert [job.id for job in claimer.held()] == ids
        assert [job.id for job in claimer.claim(3)] == ids[1:]


def test_a_claim_without_a_reply_is_undone_at_the_end(app: Tenure) -> None:
    """Seen failing when the end of the block put back only the jobs that the claimer knew."""
    one, two = enqueue(app, "mail"), enqueue(app, "mail")
    with Claimer(app, housekeeping=False) as claimer, Claimer(app, worker="named") as named:
        app.store.claim(claimer.worker, {"default": 1})
        app.store.claim(named.worker, {"default": 1})
    assert [app.get(id).state for id in (one, two)] == [State.QUEUED, State.RUNNING]


def test_a_cancelled_claim_loses_no_job(app: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen failing when the claim was cancelled with its caller: the claimer did not know the job,
    which was charged."""
    ids = [enqueue(app, "mail") for _ in range(2)]
    found: list[int] = []

    async def cancelled(claimer: AsyncClaimer) -> None:
        claimed, goes_on = asyncio.Event(), asyncio.Event()

        async def slow(*args: Any, **options: Any) -> Any:
            answer = await run_on(*args, **options)
            claimed.set()
            await goes_on.wait()
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(core, "run_on", slow)
            task = asyncio.create_task(claimer.claim_one())
            await claimed.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        goes_on.set()

    async def main() -> None:
        async with app, AsyncClaimer(app, housekeeping=False) as claimer:
            await cancelled(claimer)
            for _ in ids:
                job = await claimer.claim_one(wait_seconds=PATIENCE_SECONDS)
                assert job is not None
                found.append(job.id)
                await job.succeed()
            [last] = await app.async_store.enqueue([NewJob(task="mail")])
            found.append(last.id)
            await cancelled(claimer)

    asyncio.run(main())
    assert sorted(found[:2]) == ids
    last = app.get(found[2])
    assert (last.state, last.attempts) == (State.QUEUED, 0)


def test_an_end_shares_the_callers_transaction(app: Tenure, url: str) -> None:
    first, second = enqueue(app, "mail"), enqueue(app, "mail")
    with app.transaction() as transaction:
        transaction.execute("create table paid (job integer)")
    with Claimer(app, heartbeat_seconds=0.05) as claimer:
        one = claimer.claim_one()
        assert one is not None
        with app.transaction() as transaction:
            transaction.execute(f"insert into paid values ({one.id})")
            one.succeed("kept", on=transaction)
        until(lambda: claimer.held() == [])
        assert not one.lost
        two = claimer.claim_one()
        assert two is not None
        with pytest.raises(ZeroDivisionError), app.transaction() as transaction:
            transaction.execute(f"insert into paid values ({two.id})")
            two.skip(on=transaction)
            raise ZeroDivisionError
        assert claimer.held() == [two]
        two.fail("after all")
        with app.transaction() as transaction:
            assert transaction.execute("select job from paid").fetchall() == [(first,)]
    assert [app.get(id).state for id in (first, second)] == [State.SUCCEEDED, State.FAILED]
    assert leases(url) == 0


def test_a_committed_end_is_seen_while_other_jobs_share_its_lease(app: Tenure) -> None:
    """Seen failing when only a lost lease took a job off the list."""
    for _ in range(2):
        enqueue(app, "mail")
    with Claimer(app, heartbeat_seconds=0.05) as claimer:
        one, two = claimer.claim(2)
        with app.transaction() as transaction:
            one.succeed(on=transaction)
        until(lambda: claimer.held() == [two])
        assert one.is_ended
        assert not one.lost


def test_a_job_whose_end_was_rolled_back_is_told_that_it_is_lost(app: Tenure) -> None:
    """Seen failing when `on=` counted as the end, whatever became of the transaction."""
    enqueue(app, "mail")
    with Claimer(app, heartbeat_seconds=0.05, lease_seconds=60, housekeeping=False) as claimer:
        [job] = claimer.claim()
        with pytest.raises(ZeroDivisionError), app.transaction() as transaction:
            job.succeed(on=transaction)
            raise ZeroDivisionError
        app.store.sweep(now=datetime.now(UTC) + timedelta(days=1))
        assert job.lost.wait(PATIENCE_SECONDS)
        assert not job.is_ended


def test_one_call_does_all_housekeeping(app: Tenure) -> None:
    app.store.enqueue([NewJob(task="mail", delay_seconds=0.001)])
    enqueue(app, "mail")
    with Claimer(app, housekeeping=False) as claimer:
        app.store.claim("dead", {"default": 1}, lease_seconds=0.001)
        found = Housework()
        while found.promoted + found.requeued < 2:
            done = claimer.housekeeping(everything=True)
            found.promoted += done.promoted
            found.requeued += done.requeued
        assert (found.promoted, found.requeued) == (1, 1)
        assert claimer.housekeeping() == Housework()

    async def in_async() -> Housework:
        late = NewJob(task="mail", expires_at=datetime.now(UTC) - timedelta(hours=1))
        async with app, AsyncClaimer(app) as claimer:
            await app.async_store.enqueue([late])
            return await claimer.housekeeping(everything=True)

    assert asyncio.run(in_async()) == Housework(expired=1)


def test_a_claimer_keeps_house_while_it_waits(app: Tenure) -> None:
    app.store.enqueue([NewJob(task="mail", delay_seconds=0.05)])
    with Claimer(app) as claimer:
        assert claimer.claim_one(wait_seconds=60) is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda app: Claimer(app, []),
        lambda app: Claimer(app, 7),  # type: ignore[arg-type]
        lambda app: Claimer(app, "not a name"),
        lambda app: Claimer(app, {"media": 1}),
        lambda app: Claimer(app, in_order="yes"),  # type: ignore[arg-type]
        lambda app: Claimer(app, tasks=[]),
        lambda app: Claimer(app, tasks="mail"),
        lambda app: Claimer(app, worker=""),
        lambda app: Claimer(app, lease_seconds=0),
        lambda app: Claimer(app, lease_seconds=10, heartbeat_seconds=9),
        lambda app: Claimer(app).claim(),
        lambda app: Claimer(app).held(),
    ],
)
def test_mistakes_are_named(app: Tenure, make: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidInput):
        make(app)


def test_values_are_checked_before_anything_is_written(app: Tenure) -> None:
    id = enqueue(app, "mail")
    with Claimer(app) as claimer:
        [job] = claimer.claim()
        for end, wrong in (("succeed", object()), ("fail", 7), ("snooze", "soon"), ("retry", None)):
            with pytest.raises(InvalidInput):
                getattr(job, end)(wrong)
        assert app.get(id).state is State.RUNNING
        job.succeed()


def test_a_job_that_starts_at_most_once_starts_with_its_claim(app: Tenure) -> None:
    """Seen failing when the claimer did not say so: the job was handed out a second time."""
    jobs = [NewJob(task="pay", at_most_once=True) for _ in range(2)]
    done, left = (each.id for each in app.store.enqueue(jobs))
    with Claimer(app) as claimer:
        job = claimer.claim_one()
        assert job is not None
        job.succeed()
        assert claimer.claim_one() is not None
    assert app.get(done).state is State.SUCCEEDED
    seen = app.get(left)
    assert (seen.state, seen.reason) == (State.FAILED, f"{AT_MOST_ONCE}: shutdown")


def test_a_claimer_says_how_long_its_jobs_are_kept(app: Tenure) -> None:
    """Seen failing when only the settlements of `succeed` said it."""
    good, bad, other = (enqueue(app, "mail") for _ in range(3))
    with Claimer(app, keep_succeeded_seconds=0, keep_other_seconds=3600) as claimer:
        first, second = claimer.claim(2)
        first.succeed()
        second.fail("boom")
    with Claimer(app) as claimer:
        [third] = claimer.claim(1)
        third.succeed()
    with pytest.raises(JobNotFound):
        app.get(good)
    app.store.prune(now=datetime.now(UTC) + timedelta(hours=2))
    with pytest.raises(JobNotFound):
        app.get(bad)
    assert app.get(other).state is State.SUCCEEDED


def test_ends_are_counted_once_and_written_at_the_end(app: Tenure) -> None:
    """Seen failing when claimers counted nothing."""
    jobs = [NewJob(task="mail", max_attempts=n) for n in (1, 2, 1, 1, 1, 1, 1)]
    jobs.append(NewJob(task="mail", at_most_once=True))
    app.store.enqueue(jobs)
    with Claimer(app, housekeeping=False) as claimer:
        one, two, three, four, five, six, *_ = claimer.claim(8)
        one.succeed()
        one.succeed()  # says the same
        two.retry("boom", after_seconds=60)
        three.retry("boom")
        four.snooze(60)
        five.release(delay_seconds=60)
        with app.transaction() as transaction:
            six.succeed(on=transaction)  # is not counted
        assert app.statistics() == []
    [group] = app.statistics()
    counts = {"succeeded": 1, "retried": 1, "failed": 2, "snoozed": 1}
    assert (group.queue, group.task, group.counts) == ("default", "mail", counts)
    assert group.run.count == group.wait.count == 3


def test_counts_are_written_while_a_claimer_runs_and_kept_if_they_cannot(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    enqueue(app, "mail")
    with Claimer(app) as claimer:
        claimer.claim()[0].succeed()
        with monkeypatch.context() as patch:
            patch.setattr(counting, "add_statistics", away)
            claimer.housekeeping(everything=True)
        assert app.statistics() == []
        monkeypatch.setattr(counting, "WRITE_SECONDS", 0)
        claimer.claim()
        [group] = app.statistics()
        assert group.counts == {"succeeded": 1}
        assert app.depth() is not None
    assert app.statistics()[0].counts == {"succeeded": 1}


def test_a_doubted_clock_does_not_stop_a_claimer(
    app: Tenure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def doubt(*_: object, **__: object) -> int:
        raise ClockDoubted("the clock has jumped")

    monkeypatch.setattr(housekeeping, "prune", doubt)
    with Claimer(app, housekeeping=False) as claimer:
        assert claimer.housekeeping(everything=True).pruned == 0
    assert "the clock has jumped" in caplog.text


@dataclass
class Told:
    """The arguments of a hook."""

    failed: FailedJob


def test_ends_by_hand_are_in_the_feed_once_and_failures_call_the_declared_hook(url: str) -> None:
    """The claimer stores the hooks of the code, as a worker does."""
    with Tenure(url) as app:

        @app.on_failed
        @app.task(name="alert", queue="alerts")
        def alert(failed: FailedJob) -> None: ...

        @app.task(name="audio", max_attempts=1)
        def audio(file: str) -> None: ...

        app.add_reader("r")
        ids = [enqueue(app, "audio") for _ in range(4)]
        with Claimer(app, ["default", "alerts"]) as claimer:
            assert app.failure_hooks() == [(None, "alert")]
            good, bad, last, dull = claimer.claim(4)
            good.succeed(1)
            bad.fail(ValueError("no"))
            last.retry(ValueError("no"))
            dull.skip("nothing to do")
            with pytest.raises(LeaseLost):
                bad.skip("too late")
            called = claimer.claim(4)
            assert [job.task for job in called] == ["alert", "alert"]
            told = [job.args_as(Told).failed.id for job in called]
            assert told == [bad.id, last.id]
            called[0].fail(ValueError("the failure of a hook calls no hook"))
            called[1].succeed()
            assert claimer.claim(4) == []
        ends = {end.id: str(end.state) for end in app.feed("r", follow=False)}
    states = ("succeeded", "failed", "failed", "skipped", "failed", "succeeded")
    assert ends == dict(zip([*ids, *(job.id for job in called)], states, strict=True))


def test_what_housekeeping_ends_is_in_the_feed(app: Tenure) -> None:
    app.add_reader("r")
    late = enqueue(app, "mail", start_within_seconds=0)
    with Claimer(app, "other", housekeeping=False) as claimer:
        assert claimer.housekeeping(everything=True).expired == 1
        assert claimer.housekeeping(everything=True).expired == 0
    assert [(end.id, str(end.state)) for end in app.feed("r", follow=False)] == [(late, "skipped")]
