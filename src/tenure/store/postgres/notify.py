"""How a transaction that adds tickets wakes idle workers on PostgreSQL.

Workers poll, so every ticket is found without notifications; a notification only makes it faster. A
commit that notifies takes a lock on the whole database, so a store sends
- at most one per transaction, in the same round trip as the COMMIT,
- at most one per queue every 5 ms: a worker that was woken claims again by then,
- at most one every 0.25 s for tickets that will be due within a moment: a worker that was woken
  looks often until then,
- at most one every 0.25 s for permits that became free at gates: the worker that has freed one
  claims by itself,
- none if the lane has a ticket just before the new ones (see the statement `notify`).
If the server refuses a notification, for example because its queue is full, the store runs the
operation again without one.
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

Lane = tuple[str, int, int]
"""Queue, needs and priority."""

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
                self.add(ticket.queue, ticket.needs, ticket.priority, ticket.position)
            elif ticket.due_soon:
                self._due.add(ticket.queue)

    def add_ready(self, queues: Iterable[str]) -> None:
        """Tickets that were there before may be claimed now: notify without a look at others."""
        self._lanes.update(((queue, 0, 0), None) for queue in queues)

    def add_soon(self, queues: Iterable[str]) -> None:
        """There may be something to claim, and workers look often enough to find most of it."""
        self._due.update(queues)

    def add(self, queue: str, needs: int, priority: int, position: int) -> None:
        """A ticket is ready. Only the lowest position of a lane counts."""
        lane = queue, needs, priority
        first = self._lanes.get(lane)
        if first is None or position < first:
            self._lanes[lane] = position

    def take(self) -> Notice | None:
        """The notification that is due, if any. It is news once."""
        lanes = {
            lane: position for lane, position in self._lanes.items() if lane[0] not in self._said
        }
        queues = {queue for queue, _, _ in lanes}
        due = self._due - self._said - queues
        self._lanes, self._due = {}, set()
        self._said |= queues | due
        if self._calm:
            queues = queues if self._notifier.is_time(queues, CALM_SECONDS) else set()
            due = due if self._notifier.is_time(due, CALM_DUE_SECONDS) else set()
        alone = len(lanes) == 1 and not due
        (queue, needs, priority), position = (
            next(iter(lanes.items())) if alone else (("", 0, 0), None)
        )
        queues |= due
        if not queues:
            return None
        payload = next(iter(queues)) if len(queues) == 1 else ""
        params = {
            "payload": payload, "queue": queue, "needs": needs, "priority": priority,
            "position": position,
        }  # fmt: skip
        return Notice(queues, params)


class Notifier:
    """The notifications that one store has sent lately."""

    def __init__(self, statement: str, *, on: bool) -> None:
        self._statement = statement
        self._on = on
        self._told: dict[str, float] = {}
        self._silent_until = 0.0

    def news(self, *, calm: bool = True) -> News | None:
        """To be filled by a transaction; None when there will be no notification anyway.

        Not `calm`: in the caller's transaction, which may end at any time, and in any way.
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
