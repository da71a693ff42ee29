"""Processes that are killed or stopped at any moment: nothing is lost, and the late are refused."""

from __future__ import annotations

import random
import signal
from collections import Counter

import pytest

from tenure.rules import lifecycle
from tenure.rules.job import NewJob
from tenure.store import LANDED, open_store
from tests.conftest import Count
from tests.processes import roles
from tests.processes.crew import Crew
from tests.support.audit import audit
from tests.support.patience import until
from tests.support.plain import Plain

KILLS = {"share": 6, "whole": 20}
CHURN_SECONDS = 900.0
"""Longer than any machine needs for the kills."""
MEMBERS = 6
LEASE_SECONDS = 0.3


def wait_for_backends(url: str) -> None:
    """A killed client's backend may still be finishing its statement."""
    with Plain(url) as plain:
        if plain.is_postgres:
            until(
                lambda: (
                    plain.one(
                        "select count(*) from pg_stat_activity where datname = current_database()"
                        " and application_name = 'tenure'"
                    )
                    == 0
                )
            )


def drain(url: str) -> None:
    """Run what is left, with the sweeps and promotions of a single worker."""
    with open_store(url) as store:

        def nothing_is_live() -> bool:
            store.sweep(most=1000)
            store.promote()
            for lease in store.claim("last", {"default": 1000}):
                ends = [lifecycle.succeed(held) for held in lease.jobs]
                assert store.settle("last", ends, done_leases=[lease.id]) == [LANDED] * len(ends)
            return not store.count_live()

        until(nothing_is_live)


@pytest.mark.slow
def test_nothing_is_lost_when_busy_processes_are_killed_at_random(
    url: str, crew: Crew, whole: bool, count: Count
) -> None:
    wanted = KILLS["whole" if whole else "share"]
    chance = random.Random(20260301)
    alive = [crew.start(roles.churn, url, LEASE_SECONDS, CHURN_SECONDS) for _ in range(MEMBERS)]
    crew.go()
    kills = 0
    while kills < wanted:
        victim = chance.choice(alive)
        victim.wait_for("enqueued", chance.randrange(1, 60))
        victim.kill()
        kills += 1
        alive.remove(victim)
        alive.append(crew.start(roles.churn, url, LEASE_SECONDS, CHURN_SECONDS))
    for member in alive:
        member.kill()
        kills += 1
    crew.join()
    wait_for_backends(url)
    audit(url)

    drain(url)

    acknowledged = list(crew.said("enqueued"))
    succeeded = Counter(crew.said("succeeded"))
    with Plain(url) as plain:
        history = Counter(row[0] for row in plain.rows("select id from tenure.history"))
        states = {row[0] for row in plain.rows("select cast(state as text) from tenure.history")}
        crashes = plain.one("select sum(crashes) from tenure.history")
    print(f"\n{url.partition(':')[0]}: {len(history):,} jobs, {kills} kills, {crashes} lost leases")
    assert kills >= wanted
    assert crashes > 0
    assert len(acknowledged) == len(set(acknowledged))
    assert set(acknowledged) <= set(history)
    assert set(history.values()) == {1}
    assert states == {"succeeded"}
    assert set(succeeded.values()) == {1}, "two workers were told that they finished one job"
    assert set(succeeded) <= set(history)
    audit(url)
    count("deaths", kills)


@pytest.mark.parametrize("ending", ["finished by another", "in line again", "failed by the sweep"])
def test_whoever_was_stopped_past_its_lease_is_refused_everything(
    url: str, crew: Crew, ending: str
) -> None:
    store = open_store(url)
    attempts = 1 if ending == "failed by the sweep" else 5
    [job] = store.enqueue([NewJob(task="app.slow", max_attempts=attempts)])
    member = crew.start(roles.hold_and_settle_late, url)
    member.wait_for("claimed")
    member.signal(signal.SIGSTOP)
    until(lambda: store.sweep().requeued + store.get(job.id).crashes > 0)
    if ending == "finished by another":
        [lease] = store.claim("other", {"default": 1})
        assert store.settle("other", [lifecycle.succeed(lease.jobs[0])]) == [LANDED]
    before = store.get(job.id)
    member.signal(signal.SIGCONT)
    crew.go()
    crew.join()

    [lost] = member.said("lost")
    assert len(lost) == 1
    assert member.said("late") == [True, True, True]
    assert store.get(job.id) == before
    audit(url)
    store.close()
