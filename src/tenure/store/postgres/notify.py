"""How a transaction that adds tickets wakes idle workers on PostgreSQL.

Polling is the truth, a notification is a hint. A commit that notifies takes a lock on the whole
database, so there is
- at most one per transaction, which travels in the same round trip as the COMMIT,
- at most one per queue every 5 ms from one store: a worker that was woken looks again by then,
- for tickets that will be due within a moment, which workers do not know of, one every 0.25 s: a
  worker that was woken looks often until then,
- the same for places that come free at gates: the worker that has freed one looks by itself,
- none when others stand in line just before ours (see the statement `notify`).
A notification that the server refuses, because its queue is full, say, costs no commit: the
operation is run again in silence.
"""

import logging
import time
from collections.abc import Iterable, Set
from typing import NamedTuple

from psycopg import sql

from tenure.store.records import AddedTicket, NewLane

CALM_SECONDS = 0.005
CALM_DUE_SECONDS = 0.25
SILENCE_SECONDS = 60.0
MAX_REMEMBERED = 1000

Lane = tuple[str, int]

log = logging.getLogger("tenure.bell")


class Notice(NamedTuple):
    """One notification: whom it concerns, and the parameters of the statement `notify`."""

    queues: Set[str]
    params: dict[str, object]


class News:
    """The queues in which one transaction has made something claimable."""

    def __init__(self, notifier: "Notifier", *, calm: bool) -> None:
        self._notifier = notifier
        self._calm = calm
        self._lanes: dict[Lane, int | None] = {}
        self._due: set[str] = set()
        self._said: set[str] = set()

    def add_tickets(self, tickets: Iterable[AddedTicket | NewLane]) -> None:
        """These tickets are new. One that is neither ready nor due soon is no news."""
        for ticket in tickets:
            if ticket.position is not None:
                self.add(ticket.queue, ticket.priority, ticket.position)
            elif ticket.due_soon:
                self._due.add(ticket.queue)

    def add_ready(self, queues: Iterable[str]) -> None:
        """Tickets that were there before may be claimed now: notify without a look at others."""
        self._lanes.update(((queue, 0), None) for queue in queues)

    def add_soon(self, queues: Iterable[str]) -> None:
        """There may be something to claim, and workers look often enough to find most of it."""
        self._due.update(queues)

    def add(self, queue: str, priority: int, position: int) -> None:
        """A ticket is ready. Only the lowest position of a lane counts."""
        first = self._lanes.get((queue, priority))
        if first is None or position < first:
            self._lanes[queue, priority] = position

    def take(self) -> Notice | None:
        """The notification that is due, if any. It is news once."""
        lanes = {
            (queue, priority): position
            for (queue, priority), position in self._lanes.items()
            if queue not in self._said
        }
        queues = {queue for queue, _ in lanes}
        due = self._due - self._said - queues
        self._lanes, self._due = {}, set()
        self._said |= queues | due
        if self._calm:
            queues = queues if self._notifier.is_time(queues, CALM_SECONDS) else set()
            due = due if self._notifier.is_time(due, CALM_DUE_SECONDS) else set()
        alone = len(lanes) == 1 and not due
        (queue, priority), position = next(iter(lanes.items())) if alone else (("", 0), None)
        queues |= due
        if not queues:
            return None
        payload = next(iter(queues)) if len(queues) == 1 else ""
        params = {"payload": payload, "queue": queue, "priority": priority, "position": position}
        return Notice(queues, params)


class Notifier:
    """What one store has told of late."""

    def __init__(self, statement: str, *, on: bool) -> None:
        self._statement = statement
        self._on = on
        self._told: dict[str, float] = {}
        self._silent_until = 0.0

    def news(self, *, calm: bool = True) -> News | None:
        """To be filled by a transaction; None when there will be no notification anyway.

        Not `calm`: in the caller's transaction. Nobody knows when it ends, and how.
        """
        return News(self, calm=calm) if self._on and self._awake() else None

    def script(self, notice: Notice) -> str:
        """`notify` as text, to be sent together with the COMMIT."""
        return self._statement % {name: _literal(each) for name, each in notice.params.items()}

    def is_time(self, queues: Set[str], calm_seconds: float) -> bool:
        """Has one of these queues not been told of for so long?"""
        now = time.monotonic()
        return any(now - self._told.get(queue, 0.0) >= calm_seconds for queue in queues)

    def note_told(self, notice: Notice) -> None:
        """It was committed."""
        if len(self._told) > MAX_REMEMBERED:
            self._told = {}
        self._told |= dict.fromkeys(notice.queues, time.monotonic())

    def fall_silent(self) -> None:
        """The server takes no notifications now; do not try for a while."""
        log.warning(
            "PostgreSQL refused a notification; there will be none for %g s, and workers find new "
            "jobs by polling. Look for a session that listens inside a long transaction",
            SILENCE_SECONDS,
        )
        self._silent_until = time.monotonic() + SILENCE_SECONDS

    def _awake(self) -> bool:
        return time.monotonic() >= self._silent_until


def _literal(value: object) -> str:
    return sql.Literal(value).as_string(None)
