"""How long a worker keeps finished jobs, when it prunes, and what a wrong clock may do."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenure import Skip, State, Tenure, Worker
from tenure.errors import ConfigError, InvalidInput, JobGone, JobNotFound, OutOfRange
from tenure.rules.job import NewJob
from tenure.rules.lifecycle import succeed
from tenure.rules.retention import FOREVER_SECONDS, Keep
from tenure.store.sqlite import boot_clock
from tenure.worker.settings import WorkerSettings
from tests.support.plain import Plain
from tests.worker.support import Lines, ended, eventually, working

never = Tenure("sqlite:///never-opened.db")


def kept_until(url: str) -> dict[int, Any]:
    with Plain(url) as plain:
        return dict(plain.rows("select id, keep_until from tenure.history"))


def test_the_lengths_of_a_worker_reach_the_ends(app: Tenure, url: str) -> None:
    @app.task()
    def work(ok: bool) -> None:
        if not ok:
            raise Skip

    @app.task(queue="ledger")
    def write() -> None: ...

    @app.task(keep_succeeded_seconds=math.inf)
    def mine() -> None: ...

    keep: dict[str, Any] = {
        "keep_succeeded_seconds": 60.0,
        "keep_other_seconds": 0.0,
        "queue_keep_succeeded_seconds": {"ledger": math.inf},
    }
    with working(app, **keep):
        one, two, own = work.enqueue(True), write.enqueue(), mine.enqueue()
        for handle in (one, two, own):
            ended(app, handle.id)
        gone = work.enqueue(False)
        late = work.options(start_within_seconds=0).enqueue(True)
        eventually(lambda: is_gone(app, gone.id) and is_gone(app, late.id))
    until = kept_until(url)
    assert set(until) == {one.id, two.id, own.id}
    assert until[two.id] == until[own.id] > until[one.id]


def is_gone(app: Tenure, id: int) -> bool:
    try:
        app.get(id)
    except JobNotFound:
        return True
    return False


def test_a_task_and_a_call_say_it(app: Tenure) -> None:
    @app.task(keep_succeeded_seconds=timedelta(hours=1), keep_other_seconds=math.inf)
    def work() -> None: ...

    def lengths(job: NewJob) -> tuple[float | None, float | None]:
        return job.keep_succeeded_seconds, job.keep_other_seconds

    assert lengths(work.call().job) == (3600, FOREVER_SECONDS)
    called = work.options(keep_succeeded_seconds=0, keep_other_seconds=timedelta(days=1)).call()
    assert lengths(called.job) == (0, 86_400)
    with pytest.raises(OutOfRange, match="keep_other_seconds"):
        work.options(keep_other_seconds=-1)
    with pytest.raises(OutOfRange, match="keep_succeeded_seconds"):
        app.task(keep_succeeded_seconds=-1)


def test_to_wait_for_a_job_that_is_not_kept_tells_so(app: Tenure) -> None:
    @app.task(keep_succeeded_seconds=0)
    def work() -> int:
        return 5

    handle = work.enqueue()
    with working(app), pytest.raises(JobGone, match=r"job \d+ is no longer stored.*are not kept"):
        handle.wait(timeout_seconds=60)
    with pytest.raises(JobNotFound) as told:
        app.wait(10**9, timeout_seconds=60)
    assert not isinstance(told.value, JobGone), "there was no such job"


def test_the_same_in_async_code(app: Tenure) -> None:
    @app.task(keep_succeeded_seconds=0)
    async def work() -> int:
        return 5

    async def wait() -> None:
        handle = await work.enqueue_async()
        try:
            await handle.wait_async(timeout_seconds=60)
        finally:
            await app.close_loop()

    with working(app), pytest.raises(JobGone):
        asyncio.run(wait())


def test_a_schedule_keeps_what_its_task_says(app: Tenure) -> None:
    @app.task(keep_succeeded_seconds=0, keep_other_seconds=9)
    def work() -> None: ...

    app.schedules.add("often", work.call(), every_seconds=3600)
    job = app.schedules.trigger("often")
    assert job is not None
    claimed = app.store.claim("w", {"default": 1})[0].jobs[0]
    app.store.settle("w", [succeed(claimed)], done_leases=[claimed.lease_id])
    with pytest.raises(JobNotFound):
        app.get(claimed.id)


# --- when it prunes -------------------------------------------------------------------------------


def old_job(app: Tenure) -> int:
    long_ago = datetime.now(UTC) - timedelta(days=100)
    [added] = app.store.enqueue([NewJob(task="of.old", queue="old")], now=long_ago)
    [lease] = app.store.claim("w", {"old": 1}, now=long_ago)
    app.store.settle("w", [succeed(lease.jobs[0])], done_leases=[lease.id], now=long_ago)
    return added.id


def last_prune(url: str, ago: timedelta) -> None:
    at = datetime.now(UTC) - ago
    with Plain(url) as plain:
        plain.rows("delete from tenure.prune_clock")
        value = f"'{at.isoformat()}'" if plain.is_postgres else str(int(at.timestamp() * 1e6))
        plain.rows(f"insert into tenure.prune_clock (one, trusted_at) values (1, {value})")


def test_prune_seconds_says_when_a_worker_prunes(
    app: Tenure, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.worker.upkeep.upkeep.PRUNE_SOON_SECONDS", 0.01)
    id = old_job(app)
    last_prune(url, timedelta(hours=2))

    @app.task()
    def work() -> None: ...

    asked = eventually_asked(monkeypatch)
    with working(app, prune_seconds=3 * 3600.0):
        eventually(lambda: asked)
    assert app.get(id).state is State.SUCCEEDED
    with working(app, prune_seconds=3600.0):
        eventually(lambda: is_gone(app, id))


def eventually_asked(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Filled when a worker has asked whether a prune is due."""
    from tenure.worker.upkeep.upkeep import Upkeep

    asked: list[float] = []
    prune = Upkeep._prune

    async def counted(self: Upkeep) -> None:
        await self._store.prune(every_seconds=self._settings.prune_seconds)
        asked.append(self._settings.prune_seconds)
        await prune(self)

    monkeypatch.setattr(Upkeep, "_prune", counted)
    return asked


def test_a_worker_whose_clock_is_ten_years_ahead_deletes_nothing(
    app: Tenure, url: str, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL the clock is the server's. There the last prune is set back instead."""
    monkeypatch.setattr("tenure.worker.upkeep.upkeep.PRUNE_SOON_SECONDS", 0.01)

    @app.task()
    def work() -> None: ...

    with working(app):
        ids = [work.enqueue().id for _ in range(3)]
        for id in ids:
            ended(app, id)
    ten_years = timedelta(days=3653)
    if url.startswith("sqlite"):
        real = boot_clock._wall_microseconds
        ahead = ten_years // timedelta(microseconds=1)
        monkeypatch.setattr(boot_clock, "_wall_microseconds", lambda: real() + ahead)
    else:
        last_prune(url, ten_years)
    with working(app, prune_seconds=0.05):
        handle = work.enqueue()
        ended(app, handle.id)
        eventually(lambda: lines.with_text("pruning failed, trying again: nothing was pruned"))
        handle = work.enqueue()
        ended(app, handle.id)
    assert {app.get(id).state for id in ids} == {State.SUCCEEDED}


# --- settings -------------------------------------------------------------------------------------


def test_without_settings_nothing_is_said() -> None:
    assert Worker(never).settings.keep is None
    assert WorkerSettings().unknown_task_seconds == 7 * 86_400


def test_settings_give_a_length_for_each_queue() -> None:
    settings = Worker(
        never, {"a": 0, "b": 0}, keep_other_seconds=math.inf, queue_keep_succeeded_seconds={"b": 0}
    ).settings
    assert settings.keep == {"a": Keep(None, math.inf), "b": Keep(0, math.inf)}


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"keep_other_seconds": -1}, OutOfRange, "keep_other_seconds"),
        ({"keep_succeeded_seconds": math.nan}, OutOfRange, "keep_succeeded_seconds"),
        ({"queue_keep_other_seconds": {"x": 1}}, ConfigError, "names x, which is not in queues"),
        ({"queue_keep_other_seconds": 5}, ConfigError, "must be a mapping such as"),
        ({"unknown_task_seconds": -1}, OutOfRange, "unknown_task_seconds"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    given: dict[str, Any], error: type[InvalidInput], told: str
) -> None:
    with pytest.raises(error, match=told):
        Worker(never, **given)
