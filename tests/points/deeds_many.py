"""Operations on many jobs at a time: all of a batch, or nothing of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tenure.rules.gates import Limits
from tenure.rules.job import Unique
from tests.points.deed import VICTIM, Deed, Hand, all_of
from tests.points.deeds_flows import failing
from tests.support.plain import Plain
from tests.support.work import add, settle


class CancelMany(Deed):
    """Two in line, one of them with a key and a child, and one that runs."""

    name, call, about = "cancel of many", "cancel_many", "lock_live_jobs"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        running = add(hand.store, hand.now)
        hand.take()
        self.ids = [running, add(hand.store, hand.now, unique=Unique(key="a"))]
        self.ids.append(add(hand.store, hand.now, delay_seconds=5))
        add(hand.store, hand.now, parents=(self.ids[1],))

    def do(self, hand: Hand) -> None:
        hand.store.cancel_many(self.ids, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:
        return Counter(cancelled=3, skipped=1) if landed else all_of(4)


class HoldMany(Deed):
    """One in line, one at a gate and one that is due later, until they are let go."""

    name, call, about = "hold of many", "hold_many", "set_held_jobs"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        hand.store.declare_gates({"g": Limits(max_running=1)}, now=hand.now)
        options: tuple[dict[str, Any], ...] = ({}, {"gate": "g"}, {"delay_seconds": 5})
        self.ids = [add(hand.store, hand.now, **given) for given in options]

    def do(self, hand: Hand) -> None:
        hand.store.hold_many(self.ids, now=hand.now)

    def again(self, hand: Hand) -> None:
        hand.store.unhold_many(self.ids, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(3)


class UnholdMany(HoldMany):
    """They go to the ends of their lines."""

    name, call, about = "unhold of many", "unhold_many", "add_tickets"

    def lay(self, hand: Hand, plain: Plain) -> None:
        super().lay(hand, plain)
        hand.store.hold_many(self.ids, now=hand.now)

    def do(self, hand: Hand) -> None:
        hand.store.unhold_many(self.ids, now=hand.now)


class MoveMany(HoldMany):
    """Another priority and another time."""

    name, call, about = "move of many", "move_many", "add_tickets"

    def do(self, hand: Hand) -> None:
        hand.store.move_many(self.ids, priority=7, due_at=hand.now, now=hand.now)


class ReplayMany(Deed):
    """Jobs that have failed begin anew, one with its key."""

    name, call, about = "replay of many", "replay_many", "replay_jobs"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        self.ids = [add(hand.store, hand.now, unique=Unique(key="a")), add(hand.store, hand.now)]
        held = hand.take()
        settle(hand.store, hand.now, *map(failing, held), worker=VICTIM)
        for one in held:
            hand.ended(one)

    def do(self, hand: Hand) -> None:
        hand.store.replay_many(self.ids, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:
        return all_of(2) if landed else Counter(failed=2)


class DeleteMany(ReplayMany):
    """What has ended is gone, with all that was kept of it."""

    name, call, about = "delete of many", "delete_many", "delete"

    def do(self, hand: Hand) -> None:
        hand.store.delete_many(self.ids, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:
        return all_of(0) if landed else Counter(failed=2)


MANY_DEEDS: tuple[type[Deed], ...] = (
    CancelMany, HoldMany, UnholdMany, MoveMany, ReplayMany, DeleteMany,
)  # fmt: skip
