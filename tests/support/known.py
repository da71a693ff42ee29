"""What a test knows besides the records, kept beside them: `known.json`.

Whoever checks the same records later asks the same questions: which processes were hit, when nobody
could be expected to work, how soon lost jobs must run again, and where the ledger is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from tests.support.books import Blow, Expected, Stall
from tests.support.history import Call, Records
from tests.support.plain import Plain

NAME = "known.json"
SERVER_CRASHED = "the server crashed"
"""A stall with this name: PostgreSQL was ended without a word."""
FORGOTTEN_SECONDS = 1.0
"""Heartbeats do not wait for the disk. The server writes them down within three times its
`wal_writer_delay`, 0.6 s, if it is not starved."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """All that was done, and what is allowed. `ledger`: the table of effects, if there is one, with
    the tasks that write one row there per success."""

    blows: list[Blow] = []
    stalls: list[Stall] = []
    start_seconds: float | None = None
    ledger: str | None = None
    writers: list[str] = []

    def keep(self, folder: Path) -> None:
        """Write it down beside the records."""
        (folder / NAME).write_bytes(msgspec.json.encode(self))

    def expected(self, url: str) -> Expected:
        """What the checker asks for."""
        return Expected(
            effects=None if self.ledger is None else self._effects(url, self.ledger),
            disturbed={blow.pid for blow in self.blows}, blows=self.blows, stalls=self.stalls,
            start_seconds=self.start_seconds,
        )  # fmt: skip

    def _effects(self, url: str, ledger: str) -> dict[int, int]:
        """The ledger; of jobs that do not write there, what they would have to have written."""
        with Plain(url) as plain:
            found = Counter(row[0] for row in plain.rows(f"select job from {ledger}"))
            ended = plain.rows("select id, task from tenure.history where state = 'succeeded'")
        return {**found, **{id: 1 for id, task in ended if task not in self.writers}}


def expected_of(folder: Path, url: str) -> Expected:
    """By what is kept beside the records; nothing is, if nobody has kept anything."""
    path = folder / NAME
    if not path.exists():
        return Expected()
    return msgspec.json.decode(path.read_bytes(), type=Known).expected(url)


def remembered(records: Records, stalls: Sequence[Stall]) -> Records:
    """The records, in which nobody can count on a heartbeat that was answered right before a crash
    of the server: it may be forgotten, and then jobs come back early, as promised."""
    crashes = [stall for stall in stalls if stall.why == SERVER_CRASHED]

    def is_certain(call: Call) -> bool:
        return call.sent.op != "extend" or not any(
            crash.began - FORGOTTEN_SECONDS <= call.ended <= crash.ended for crash in crashes
        )

    calls = [call if is_certain(call) else replace(call, answer=None) for call in records.calls]
    return Records(calls, records.runs)


def unasked(expected: Expected) -> Iterator[str]:
    """The invariants, or parts of them, about which the checker can say nothing, and why."""
    if expected.effects is None:
        yield "5, one effect per success: no ledger is known"
    if expected.disturbed is None:
        yield "6, nobody loses a lease unhit: it is not known who was hit"
        yield "8, what a killed process held is on record as lost: it is not known who was hit"
    if expected.start_seconds is None and expected.recovery_seconds is None:
        yield "13, how soon a lost job runs again: no time is set"
