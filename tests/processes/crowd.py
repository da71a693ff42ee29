"""32 processes on one SQLite file. Nobody hears that it is locked, and nothing is lost."""

from __future__ import annotations

from collections import Counter

from tenure.store import open_store
from tests.processes import roles
from tests.processes.crew import Crew
from tests.support.audit import audit
from tests.support.plain import Plain

PROCESSES = 32
GIVE_UP_SECONDS = 10.0
"""After so long a caller would be told `StoreBusy`."""


def crowd(url: str, crew: Crew, *, seconds: float) -> str:
    """Let them work for so long, and check everything. Answers the figures, in a line.

    A member that is told `StoreBusy`, or hears a raw "database is locked", fails, and so does this.
    """
    open_store(url).close()
    for _ in range(PROCESSES):
        crew.start(roles.take_part, url, seconds)
    crew.go()
    crew.join()

    took = sorted(one for calls in crew.said("took") for one in calls)
    enqueued = Counter(crew.said("enqueued"))
    landed = Counter(id for ids in crew.said("landed") for id in ids)
    with Plain(url) as plain:
        live = {id for (id,) in plain.rows("select id from tenure.job")}
        final = {id for (id,) in plain.rows("select id from tenure.history")}
        assert plain.rows("pragma integrity_check") == [("ok",)]
    assert set(enqueued.values()) == {1}, "two jobs with one id"
    assert set(enqueued) == live | final, "something is lost, or there is a ghost"
    assert set(landed.values()) == {1}, "two were told that they finished one job"
    assert set(landed) == final, "an end is lost"
    assert all(member.said("enqueued") for member in crew.members), "somebody starved"
    assert took[-1] < GIVE_UP_SECONDS, f"somebody waited for {took[-1]:.1f} s"
    audit(url)
    return (
        f"{PROCESSES} processes, {seconds:g} s: {len(took):,} calls, {len(enqueued):,} jobs, "
        f"0 heard of a lock; p50 {1e3 * took[len(took) // 2]:.1f} ms, "
        f"p99 {1e3 * took[len(took) * 99 // 100]:.0f} ms, worst {took[-1]:.1f} s"
    )
