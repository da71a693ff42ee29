"""Random downtime, clocks and jobs, against what the rules say when each tick is looked at."""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest

from tenure.rules.codec import encode
from tenure.rules.job import State
from tenure.rules.lifecycle import succeed
from tenure.rules.ticks import GRACE_SECONDS, ScheduleTiming, ticks
from tenure.store import Store, open_store
from tests.schedules.cast import schedule, ticks_of_jobs
from tests.support.stores import START
from tests.support.work import take

WHEN: tuple[dict[str, Any], ...] = (
    {"cron": "*/5 * * * *"},
    {"cron": "30 2 * * *", "tz": "Europe/Berlin"},
    {"cron": "*/20 * * * * *"},
    {"cron": "15 */2 * * *", "tz": "Australia/Lord_Howe"},
    {"every_seconds": 700},
)
STEPS = (1, 7, 30, 61, 300, 3_600, 86_400, 700_000)


def expected(timing: ScheduleTiming, since: datetime, now: datetime) -> list[datetime]:
    """What is to fire, from the list of all ticks."""
    if now < since:
        return []  # the clock was set back
    come = list(ticks(timing, since, now))
    if timing.catch_up == "all":
        return come[-timing.catch_up_limit :]
    if timing.catch_up == "latest":
        return come[-1:]
    return [tick for tick in come[-1:] if (now - tick).total_seconds() <= GRACE_SECONDS]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_downtime(url: str, seed: int) -> None:  # none missing beyond the policy
    random = Random(seed)
    with open_store(url) as one, open_store(url) as other:
        timing = ScheduleTiming(
            **random.choice(WHEN), catch_up=random.choice(["skip", "latest", "all"]),
            catch_up_limit=random.choice([1, 5, 64]),
        )  # fmt: skip
        now = since = START + timedelta(seconds=random.randrange(10**7))
        one.add_schedule(schedule("s", timing), now=now)
        fired: set[datetime] = set()
        for _ in range(25):
            steps = STEPS[:4] if timing.cron == "*/20 * * * * *" else STEPS
            now += timedelta(seconds=random.choice(steps) * random.random())
            if random.random() < 0.15:
                now -= timedelta(seconds=random.choice(steps))
            made = random.choice([one, other]).fire(now=now).jobs
            new = set(expected(timing, since, now)) - fired
            assert len(made) == len(new)
            fired |= new
            since = now
            assert ticks_of_jobs(one) == sorted(fired)


def _timing(random: Random) -> ScheduleTiming:
    return ScheduleTiming(
        **random.choice(WHEN), catch_up=random.choice(["skip", "latest", "all"]),
        catch_up_limit=random.choice([1, 5, 64]),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_changes(url: str, seed: int) -> None:
    """Ticks due before a change follow the old timing, ticks after it the new one; none is lost.

    Workers fire seldom, so most ticks are due when a change comes.
    """
    random = Random(1000 + seed)
    with open_store(url) as one, open_store(url) as other:
        timing, paused = _timing(random), False
        now = since = START + timedelta(seconds=random.randrange(10**7))
        one.declare_schedules([schedule("s", timing)], now=now)
        fired: set[datetime] = set()
        seen = {timing}
        for _ in range(40):
            quick = timing.cron == "*/20 * * * * *"
            now += timedelta(seconds=random.choice(STEPS[:4] if quick else STEPS) * random.random())
            store = random.choice([one, other])
            before, was_paused = timing, paused
            match random.choice(["fire", "edit", "edit", "pause", "resume", "resume", "declare"]):
                case "fire":
                    store.fire(now=now)
                case "edit":
                    timing = _timing(random)
                    fields = {"cron": timing.cron, "every_seconds": timing.every_seconds}
                    given = {name: value for name, value in fields.items() if value is not None}
                    store.edit_schedule(
                        "s", now=now, timing={
                            **given, "tz": timing.tz, "catch_up": timing.catch_up,
                            "catch_up_limit": timing.catch_up_limit,
                        },
                    )  # fmt: skip
                case "pause":
                    store.pause_schedule("s", now=now)
                    paused = True
                case "resume":
                    store.resume_schedule("s", now=now)
                    if not paused:
                        continue
                    paused = False
                case "declare":
                    wanted = _timing(random)
                    said = store.declare_schedules([schedule("s", wanted)], now=now)
                    if wanted in seen:  # it was declared before, and counts no more
                        assert said.changed == ()
                        continue
                    seen.add(wanted)
                    if wanted == timing:
                        continue
                    timing = wanted
            if not was_paused:
                fired |= set(expected(before, since, now))
            since = now
            assert ticks_of_jobs(one) == sorted(fired)
        assert one.get_schedule("s").timing == timing


def _live(store: Store) -> int:
    states = [State.QUEUED, State.RUNNING, State.SCHEDULED]
    return len(store.list_jobs(states=states).jobs)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_overlap(url: str, seed: int) -> None:
    """Never two at once; and a tick is skipped only while there is one."""
    random = Random(seed)
    timing = ScheduleTiming(every_seconds=10, overlap="skip")
    with open_store(url) as store:
        store.add_schedule(schedule("s", timing), now=START)
        now = START
        for _ in range(40):
            now += timedelta(seconds=10)
            busy = _live(store)
            assert len(store.fire(now=now).jobs) == (0 if busy else 1)
            assert _live(store) == 1
            for claimed in take(store, now) if random.random() < 0.5 else []:
                if random.random() < 0.8:
                    done = [succeed(claimed, encode(None), 0.1)]
                    store.settle("w1", done, done_leases=[claimed.lease_id], now=now)
            store.sweep(now=now)
        runs = store.schedule_runs("s", limit=1000)
        assert len(runs) == 40
        assert 0 < sum(run.job_id is None for run in runs) < 40
