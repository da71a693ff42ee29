"""What puts a ticket in line, and what does not: each a preparation and an act, by name.

Every act is about the queue `q`, which stands empty before it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tenure.rules.claim import Claimed
from tenure.rules.codec import encode
from tenure.rules.job import NewStep, WorkerInfo
from tenure.rules.lifecycle import fail, release, retry, skip, snooze, succeed
from tenure.store import Store
from tests.support.stores import Clock
from tests.support.work import ERROR, add, settle, take_one

Act = Callable[[], object]
Prepared = Callable[[Store, Clock], Act]


def _taken(store: Store, clock: Clock, **options: Any) -> Claimed:
    add(store, clock.now, queue="q", **options)
    return take_one(store, clock.now, queue="q")


def _settling(end: Callable[[Claimed], Any]) -> Prepared:
    def prepare(store: Store, clock: Clock) -> Act:
        held = _taken(store, clock)
        return lambda: settle(store, clock.now, end(held))

    return prepare


def _enqueue(store: Store, clock: Clock) -> Act:
    return lambda: add(store, clock.now, queue="q")


def _enqueue_later(store: Store, clock: Clock) -> Act:
    return lambda: add(store, clock.now, queue="q", delay_seconds=60)


def _enqueue_for_soon(store: Store, clock: Clock) -> Act:
    return lambda: add(store, clock.now, queue="q", delay_seconds=0.5)


def _move_to_soon(store: Store, clock: Clock) -> Act:
    id = add(store, clock.now, queue="q", delay_seconds=60)
    return lambda: store.move(id, due_at=clock.now + timedelta(seconds=1), now=clock.now)


def _sweep(store: Store, clock: Clock) -> Act:
    _taken(store, clock)
    clock.advance(60)
    return lambda: store.sweep(now=clock.now)


def _promote(store: Store, clock: Clock) -> Act:
    add(store, clock.now, queue="q", delay_seconds=5)
    clock.advance(10)
    return lambda: store.promote(now=clock.now)


def _replay(store: Store, clock: Clock) -> Act:
    held = _taken(store, clock)
    settle(store, clock.now, fail(held, ERROR))
    return lambda: store.replay(held.id, now=clock.now)


def _unhold(store: Store, clock: Clock) -> Act:
    id = add(store, clock.now, queue="q")
    store.hold(id, now=clock.now)
    return lambda: store.unhold(id, now=clock.now)


def _move(store: Store, clock: Clock) -> Act:
    id = add(store, clock.now, queue="elsewhere")
    return lambda: store.move(id, queue="q", now=clock.now)


def _move_a_waiting_one(store: Store, clock: Clock) -> Act:
    id = add(store, clock.now, queue="elsewhere")
    store.hold(id, now=clock.now)
    return lambda: store.move(id, queue="q", now=clock.now)


def _resume(store: Store, clock: Clock) -> Act:
    store.pause("q", now=clock.now)
    add(store, clock.now, queue="q")
    return lambda: store.resume("q", now=clock.now)


def _free(store: Store, clock: Clock) -> Act:
    held = _taken(store, clock)
    add(store, clock.now, queue="q", parents=(held.id,))
    return lambda: settle(store, clock.now, succeed(held))


def _enqueue_a_child(store: Store, clock: Clock) -> Act:
    held = _taken(store, clock)
    return lambda: add(store, clock.now, queue="q", parents=(held.id,))


def _claim(store: Store, clock: Clock) -> Act:
    add(store, clock.now, queue="q")
    return lambda: take_one(store, clock.now, queue="q")


def _extend(store: Store, clock: Clock) -> Act:
    held = _taken(store, clock)
    return lambda: store.extend("w1", {held.lease_id: [held.id]}, now=clock.now)


def _progress(store: Store, clock: Clock) -> Act:
    held = _taken(store, clock)
    return lambda: store.report_progress("w1", [(held, 0.5, None)], now=clock.now)


def _checkpoint(store: Store, clock: Clock) -> Act:
    held = _taken(store, clock)
    return lambda: store.save_checkpoint("w1", held, encode(1), now=clock.now)


def _step(store: Store, clock: Clock) -> Act:
    held = _taken(store, clock)
    return lambda: store.record_step("w1", held, NewStep("a", "f", encode(1)), now=clock.now)


def _hold(store: Store, clock: Clock) -> Act:
    id = add(store, clock.now, queue="q")
    return lambda: store.hold(id, now=clock.now)


def _cancel(store: Store, clock: Clock) -> Act:
    id = add(store, clock.now, queue="q")
    return lambda: store.cancel(id, now=clock.now)


def _announce(store: Store, clock: Clock) -> Act:
    info = WorkerInfo(name="w1", host="here", pid=1)
    return lambda: store.announce(info, now=clock.now)


def _prune(store: Store, clock: Clock) -> Act:
    return lambda: store.prune(now=clock.now)


RINGING: dict[str, Prepared] = {
    "enqueue": _enqueue,
    "retry at once": _settling(lambda held: retry(held, ERROR, 0.0)),
    "release": _settling(release),
    "snooze for no time": _settling(lambda held: snooze(held, 0.0)),
    "sweep": _sweep,
    "promote": _promote,
    "replay": _replay,
    "unhold": _unhold,
    "move": _move,
    "resume": _resume,
    "the last parent succeeds": _free,
}

# Idle workers look once a second: of what will be due before that they must be told.
SOON: dict[str, Prepared] = {
    "enqueue for soon": _enqueue_for_soon,
    "retry soon": _settling(lambda held: retry(held, ERROR, 0.5)),
    "snooze for a moment": _settling(lambda held: snooze(held, 0.5)),
    "move to soon": _move_to_soon,
}

QUIET: dict[str, Prepared] = {
    "claim": _claim,
    "heartbeat": _extend,
    "progress": _progress,
    "checkpoint": _checkpoint,
    "step": _step,
    "success": _settling(succeed),
    "failure": _settling(lambda held: fail(held, ERROR)),
    "skip": _settling(skip),
    "hold": _hold,
    "cancel": _cancel,
    "announce": _announce,
    "prune": _prune,
}

# Nobody needs to be woken, but SQLite's counter of positions grows: its bell may ring.
LATER: dict[str, Prepared] = {
    "enqueue for later": _enqueue_later,
    "enqueue a child": _enqueue_a_child,
    "retry later": _settling(lambda held: retry(held, ERROR, 60.0)),
    "move one that is held": _move_a_waiting_one,
}
