"""Who leaves a transaction open, on PostgreSQL?

A process that is stopped in one holds others up: nothing but its awakening or its death releases
its locks. That time is not held against anybody. No other process may do so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from tests.support.books import Stall
from tests.support.plain import Plain
from tests.support.recovery import merged

AWAKE_SECONDS = 3.0
"""No process that could go on has a transaction open for longer and sends nothing. The time in
which the machine had no idle processor does not count: see pulse.py."""
IDLE = """
    select client_port, extract(epoch from clock_timestamp() - state_change)::float8
    from pg_stat_activity
    where datname = current_database() and state like 'idle in transaction%'
    order by client_port
"""


@dataclass(frozen=True)
class Idle:
    """A session that is in a transaction and waits for its client: whose it is, since when."""

    pid: int | None
    since: float


def idle_sessions(url: str) -> list[Idle]:
    """All of them. The process is found by the port from which it has connected."""
    with Plain(url) as plain:
        rows = plain.rows(IDLE)
        now = time.monotonic()
    pids = _by_port() if rows else {}
    return [Idle(pids.get(port), now - seconds) for port, seconds in rows]


def _by_port() -> dict[int, int]:
    """The server's own ends of the connections all have its port, not that of a client."""
    found = psutil.net_connections("tcp")
    return {each.laddr.port: each.pid for each in found if each.laddr and each.pid is not None}


def held_up(
    sessions: Iterable[Idle],
    asleep: Mapping[int, float],
    woken: Mapping[int, float],
    now: float,
    busy: Sequence[Stall] = (),
) -> list[Stall]:
    """For how long the sessions of processes that are stopped have held others up.

    Fails when another process has a transaction open for too long. For a process that was woken,
    the time counts from then on. The time in which the machine was `busy` does not count.
    """
    stalls: list[Stall] = []
    for each in sessions:
        if each.pid is not None and each.pid in asleep:
            began = max(each.since, asleep[each.pid])
            stalls.append(Stall(f"process {each.pid} is stopped in a transaction", began, now))
            continue
        since = max(each.since, woken.get(each.pid or 0, 0.0))
        starved = sum(stall.within(since, now) for stall in merged(busy, since))
        text = (
            f"process {each.pid} has a transaction open for {now - since:.3f} s, and is awake;"
            f" the machine was busy for {starved:.3f} s of them"
        )
        assert now - since - starved <= AWAKE_SECONDS, text
    return stalls
