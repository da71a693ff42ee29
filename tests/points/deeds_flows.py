"""Workflows come in, grow, go on, end and are stopped; and what operators do to jobs."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from tenure.rules import lifecycle
from tenure.rules.claim import Claimed
from tenure.rules.gates import Limits
from tenure.rules.graph import OnFailure, Outcome
from tenure.rules.job import State, Unique, When
from tenure.rules.lifecycle import Settlement
from tests.points.deed import SUCCESSOR, VICTIM, Deed, Hand, all_of
from tests.support.flows import added, flow, more
from tests.support.plain import Plain
from tests.support.work import ERROR, add, settle

DIAMOND = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


def failing(held: Claimed) -> Settlement:
    return lifecycle.fail(held, ERROR)


class _Flow(Deed):
    """One workflow of which `id` is known, and how it ends."""

    id: int
    outcome: Outcome = Outcome.SUCCEEDED

    def check(self, hand: Hand, *, landed: bool) -> None:  # noqa: ARG002
        seen = hand.store.get_workflow(self.id, now=hand.now)
        assert seen.outcome is self.outcome, f"the workflow ended as {seen.outcome}"

    def run(self, hand: Hand, *names: str) -> list[Claimed]:
        """Run these nodes; answers all others that are in line, started."""
        held = hand.take()
        while ready := [one for one in held if one.task.removeprefix("app.") in names]:
            for one in ready:
                hand.ended(one)
            settle(hand.store, hand.now, *map(lifecycle.succeed, ready), worker=VICTIM)
            held = [one for one in held if one not in ready] + hand.take()
        return held


class EnqueueFlow(_Flow):
    """With a key: whoever enqueues it again gets this one, or a new one."""

    name, call, about = "workflow enqueue", "enqueue_workflow", "add_workflow"
    flow = flow(DIAMOND, finaliser="z", key="a")

    def do(self, hand: Hand) -> None:
        hand.store.enqueue_workflow(self.flow, now=hand.now)

    def again(self, hand: Hand) -> None:
        self.id = hand.store.enqueue_workflow(self.flow, now=hand.now).id

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(5)


class _SettleNodes(_Flow):
    call = "settle"

    def do(self, hand: Hand) -> None:
        settle(hand.store, hand.now, *self.how(), worker=VICTIM)

    def how(self) -> list[Settlement]:
        return [lifecycle.succeed(one) for one in self.held]

    held: list[Claimed]


class Release(_SettleNodes):
    """Two parents end in one batch: the child of both, and each one's own, are free."""

    name, about = "workflow release of children", "free"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        graph = {"a": (), "b": (), "c": ("a", "b"), "d": ("a",), "e": ("b",), "f": ("c", "d", "e")}
        self.id = added(hand.store, hand.now, graph).id
        self.held = self.run(hand)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(6)


class EndFlow(_SettleNodes):
    """The last node ends, and the workflow with it."""

    name, about = "workflow ending", "end_workflows"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        self.id = added(hand.store, hand.now, DIAMOND, finaliser="z", key="k").id
        self.held = self.run(hand, "a", "b", "c", "d")

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(5)


class StopFlow(_SettleNodes):
    """A node fails, and the rest is stopped, in a transaction of its own; a clean-up runs."""

    name, about = "workflow failing node, stop of the rest", "mark_workflows"
    outcome = Outcome.FAILED
    endings: ClassVar = {"app.b": failing}
    graph: ClassVar = {"a": (), "b": ("a",), "c": ("b",), "d": ("a",), "e": ("d",), "u": ("b",)}

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        whens = {"u": When.ANY_FAILED}
        options = {"on_failure": OnFailure.STOP, "finaliser": "z"}
        self.id = added(hand.store, hand.now, self.graph, whens, **options).id
        held = {one.task: one for one in self.run(hand, "a")}
        self.held = [held["app.b"]]
        settle(hand.store, hand.now, lifecycle.release(held["app.d"]), worker=VICTIM)
        hand.ended(held["app.d"])

    def how(self) -> list[Settlement]:
        return [failing(one) for one in self.held]

    def ends(self, *, landed: bool) -> None:
        """Who has started before the stop depends on who ran what."""

    def check(self, hand: Hand, *, landed: bool) -> None:
        super().check(hand, landed=landed)
        nodes = {node.name: node.state for node in hand.store.list_nodes(self.id).nodes}
        stopped = {State.CANCELLED, State.SKIPPED}
        assert nodes["b"] is State.FAILED, nodes
        assert nodes["c"] in stopped, nodes
        assert nodes["u"] is nodes["z"] is State.SUCCEEDED, nodes


class HealFlow(StopFlow):
    """A worker died between the failure and the stop: another one stops the rest."""

    name, call, about = "workflow stop for a dead worker", "heal_workflows", "stopping_workflows"
    by_hand = ("wrong outcome",)  # it says that a node has failed, and none has

    def lay(self, hand: Hand, plain: Plain) -> None:
        super().lay(hand, plain)
        plain.rows("update tenure.workflow set failed = ?, stopping = ?", True, True)

    def do(self, hand: Hand) -> None:
        hand.store.heal_workflows(now=hand.now)

    def check(self, hand: Hand, *, landed: bool) -> None:  # noqa: ARG002
        seen = hand.store.get_workflow(self.id, now=hand.now)
        assert seen.outcome is Outcome.FAILED
        nodes = {node.name: node.state for node in hand.store.list_nodes(self.id).nodes}
        assert nodes["c"] in {State.CANCELLED, State.SKIPPED}, nodes
        assert nodes["z"] is State.SUCCEEDED, nodes


class SweepNode(_Flow):
    """The worker of a node with no attempt left has died: what hangs on it goes on, or not."""

    name, call, about = "sweep of a workflow's node", "sweep", "lock_swept"
    outcome = Outcome.FAILED

    def lay(self, hand: Hand, plain: Plain) -> None:
        self.id = added(hand.store, hand.now, DIAMOND, finaliser="z").id
        plain.rows("update tenure.job set max_attempts = 1 where task = 'app.b'")
        [root] = hand.take()
        settle(hand.store, hand.now, lifecycle.succeed(root), worker=VICTIM)
        hand.ended(root)
        assert len(hand.take(1)) == len(hand.take(1)) == 1  # who is alone on its lease is charged
        hand.clock.advance(31)

    def do(self, hand: Hand) -> None:
        hand.store.sweep(now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return Counter(succeeded=3, failed=1, skipped=1)


class Grow(_Flow):
    """A running node adds others, one before a node that waits. Its next attempt adds the same."""

    name, call, about = "workflow growing", "grow_workflow", "add_ends"
    nodes = (more("x"), more("y", after=(0,)), more("w", before_names=("d",)))

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        self.id = added(hand.store, hand.now, DIAMOND, finaliser="z").id
        [self.held] = [one for one in self.run(hand, "a") if one.task == "app.b"]

    def do(self, hand: Hand) -> None:
        assert hand.store.grow_workflow(VICTIM, self.held, self.nodes, now=hand.now)

    def work(self, hand: Hand, held: Claimed) -> None:
        if held.task == "app.b":
            assert hand.store.grow_workflow(SUCCESSOR, held, self.nodes, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(8)


class CancelFlow(_Flow):
    """What waits is cancelled, what runs is asked to stop, the finaliser runs."""

    name, call, about = "workflow cancel", "cancel_workflow", "cancel_workflow"
    outcome = Outcome.CANCELLED

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        self.id = added(hand.store, hand.now, DIAMOND, finaliser="z").id
        held = {one.task: one for one in self.run(hand, "a")}
        settle(hand.store, hand.now, lifecycle.release(held["app.c"]), worker=VICTIM)
        hand.ended(held["app.c"])

    def do(self, hand: Hand) -> None:
        hand.store.cancel_workflow(self.id, now=hand.now)

    def again(self, hand: Hand) -> None:
        hand.store.cancel_workflow(self.id, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return Counter(succeeded=2, cancelled=3)


class PauseFlow(_Flow):
    """Nodes that have not started are held. It is resumed, if it was paused."""

    name, call, about = "workflow pause", "pause_workflow", "hold_nodes"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        self.id = added(hand.store, hand.now, DIAMOND).id
        held = {one.task: one for one in self.run(hand, "a")}
        settle(hand.store, hand.now, lifecycle.release(held["app.c"]), worker=VICTIM)
        hand.ended(held["app.c"])

    def do(self, hand: Hand) -> None:
        hand.store.pause_workflow(self.id, now=hand.now)

    def again(self, hand: Hand) -> None:
        hand.store.resume_workflow(self.id, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(4)


class ResumeFlow(PauseFlow):
    """They go on."""

    name, call, about = "workflow resume", "resume_workflow", "unhold_nodes"

    def lay(self, hand: Hand, plain: Plain) -> None:
        super().lay(hand, plain)
        hand.store.pause_workflow(self.id, now=hand.now)

    def do(self, hand: Hand) -> None:
        hand.store.resume_workflow(self.id, now=hand.now)


# --- operators ------------------------------------------------------------------------------------


class Cancel(Deed):
    """A job in line, with a key and a child; whoever asks again gets what it has become."""

    name, call, about = "cancel", "cancel", "finish"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        self.id = add(hand.store, hand.now, unique=Unique(key="a"))
        add(hand.store, hand.now, parents=(self.id,))

    def do(self, hand: Hand) -> None:
        hand.store.cancel(self.id, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:
        return Counter(cancelled=1, skipped=1) if landed else all_of(2)


class CancelRunning(Deed):
    """Its worker has died, too."""

    name, call, about = "cancel of a running job", "cancel", "lock_job"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        self.id = add(hand.store, hand.now)
        hand.take()

    def do(self, hand: Hand) -> None:
        hand.store.cancel(self.id, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:
        return Counter(cancelled=1) if landed else all_of(1)


class Hold(Deed):
    """Until it is let go."""

    name, call, about = "hold", "hold", "take_"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        hand.store.declare_gates({"g": Limits(max_running=1)}, now=hand.now)
        self.id = add(hand.store, hand.now, gate="g")

    def do(self, hand: Hand) -> None:
        hand.store.hold(self.id, now=hand.now)

    def again(self, hand: Hand) -> None:
        hand.store.unhold(self.id, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(1)


class Unhold(Hold):
    """It goes to the end of its line."""

    name, call, about = "unhold", "unhold", "add_tickets"

    def lay(self, hand: Hand, plain: Plain) -> None:
        super().lay(hand, plain)
        hand.store.hold(self.id, now=hand.now)

    def do(self, hand: Hand) -> None:
        hand.store.unhold(self.id, now=hand.now)


class Move(Deed):
    """Another priority and another time."""

    name, call, about = "move", "move", "add_tickets"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        self.id = add(hand.store, hand.now, delay_seconds=5)

    def do(self, hand: Hand) -> None:
        hand.store.move(self.id, priority=7, due_at=hand.now, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(1)


class Replay(Deed):
    """A job that has failed begins anew, with its key."""

    name, call, about = "replay", "replay", "replay"

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        self.id = add(hand.store, hand.now, unique=Unique(key="a"))
        [held] = hand.take()
        settle(hand.store, hand.now, failing(held), worker=VICTIM)
        hand.ended(held)

    def do(self, hand: Hand) -> None:
        hand.store.replay(self.id, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:
        return all_of(1) if landed else Counter(failed=1)


class ReplayNode(_Flow):
    """A node that has failed begins anew, and its workflow is open again."""

    name, call, about = "replay of a workflow's node", "replay", "reopen_workflow"
    outcome = Outcome.SUCCEEDED

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        self.id = added(hand.store, hand.now, DIAMOND, finaliser="z").id
        held = {one.task: one for one in self.run(hand, "a")}
        self.node = held["app.b"].id
        ends = [failing(held["app.b"]), lifecycle.succeed(held["app.c"])]
        settle(hand.store, hand.now, *ends, worker=VICTIM)
        hand.ended(held["app.b"])
        hand.ended(held["app.c"])
        assert self.run(hand, "z") == []

    def do(self, hand: Hand) -> None:
        hand.store.replay(self.node, now=hand.now)

    def again(self, hand: Hand) -> None:
        if hand.store.get(self.node, now=hand.now).state is State.FAILED:
            hand.store.replay(self.node, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(5)


class Delete(Replay):
    """What has ended is gone, with all that was kept of it."""

    name, call, about = "delete", "delete", "delete"

    def do(self, hand: Hand) -> None:
        hand.store.delete(self.id, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:
        return all_of(0) if landed else Counter(failed=1)


class Prune(Deed):
    """What has ended long ago is gone, and what is live stays. Another one prunes what is left."""

    name, call, about = "prune", "prune", "prune"
    forgets = True
    days = 40 * 86_400

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: ARG002
        add(hand.store, hand.now, unique=Unique(key="a"))
        added(hand.store, hand.now, {"a": (), "b": ("a",)})
        while held := hand.take():
            for one in held:
                hand.ended(one)
            settle(hand.store, hand.now, *map(lifecycle.succeed, held), worker=VICTIM)
        hand.clock.advance(self.days)
        add(hand.store, hand.now)

    def do(self, hand: Hand) -> None:
        hand.store.prune(now=hand.now)

    def again(self, hand: Hand) -> None:
        hand.store.prune(now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(1)


class Retire(Deed):
    """A worker says that it is gone."""

    name, call, about = "retire", "retire", "retire"

    def do(self, hand: Hand) -> None:
        hand.store.retire(VICTIM, now=hand.now)

    def ends(self, *, landed: bool) -> Counter[str]:  # noqa: ARG002
        return all_of(0)


FLOW_DEEDS: tuple[type[Deed], ...] = (
    EnqueueFlow, Release, EndFlow, StopFlow, HealFlow, SweepNode, Grow, CancelFlow, PauseFlow,
    ResumeFlow, Cancel, CancelRunning, Hold, Unhold, Move, Replay, ReplayNode, Delete, Prune,
    Retire,
)  # fmt: skip
