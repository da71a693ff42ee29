"""Random workflows, random ends, cancels, pauses, replays and additions, against the model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest

from tenure.errors import InvalidInput
from tenure.rules.claim import Claimed
from tenure.rules.graph import GrowingNode, NewNode, NewWorkflow, OnFailure
from tenure.rules.job import State, When
from tenure.rules.lifecycle import Settlement, abort, fail, retry, skip, snooze, succeed
from tenure.store import Store
from tenure.store.workflows import add as workflows
from tests.support.audit import check
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import ERROR, job, settle, take
from tests.workflows.model import (
    CANCELLED,
    FINALISER,
    MAX_ATTEMPTS,
    QUEUED,
    RUNNING,
    WAITING,
    Model,
    Node,
)

SEEDS = range(8)
LARGE = 200
RULES = (*[When.ALL_SUCCEEDED] * 3, When.ALL_FINISHED, When.ANY_SUCCEEDED, When.ANY_FAILED)


@dataclass
class Play:
    """One workflow on a store, and the same in the model."""

    store: Store
    clock: Clock
    model: Model
    chance: random.Random
    id: int = 0
    jobs: dict[str, int] = field(default_factory=dict)
    held: dict[str, Claimed] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    grown: int = 0
    told: list[str] = field(default_factory=list)

    def enqueue(self, size: int) -> None:
        names = [f"n{n}" for n in range(size)]
        for n, name in enumerate(names):
            most = min(n, self.chance.choice((0, 1, 1, 2, 4)))
            parents = set(self.chance.sample(names[max(0, n - 12) : n], min(most, 12, n)))
            when = self.chance.choice(RULES) if parents else When.ALL_SUCCEEDED
            self.model.nodes[name] = Node(parents, when)
        nodes = tuple(
            NewNode(
                name=name, job=job(task=f"app.{name}", max_attempts=MAX_ATTEMPTS), when=node.when,
                after=tuple(names.index(parent) for parent in sorted(node.parents)),
            )
            for name, node in self.model.nodes.items()
        )  # fmt: skip
        final = None
        if self.chance.random() < 0.5:
            self.model.nodes[FINALISER] = Node(set(), When.ALL_FINISHED)
            final = NewNode(name=FINALISER, job=job(task=f"app.{FINALISER}", max_attempts=3))
        flow = NewWorkflow(
            name="flow", nodes=nodes, finaliser=final,
            on_failure=OnFailure.STOP if self.model.stops else OnFailure.FINISH,
        )  # fmt: skip
        with patch.object(workflows, "FEW_PARENTS", size % 3):  # edges of both kinds
            added = self.store.enqueue_workflow(flow, now=self.clock.now)
        self.id = added.id
        self.jobs = dict(zip(names, added.nodes, strict=True))
        if added.finaliser is not None:
            self.jobs[FINALISER] = added.finaliser
        self.model.begin()

    # --- steps -------------------------------------------------------------------------------

    def claim(self) -> None:
        for _ in range(self.chance.choice((1, 1, 2, 5))):
            claimable = [] if self.model.paused else self.model.named(QUEUED)
            taken = take(self.store, self.clock.now, 1)
            assert bool(taken) == bool(claimable), (taken, claimable)
            for each in taken:
                name = each.task.removeprefix("app.")
                assert name in claimable
                self.model.nodes[name].state = RUNNING
                self.held[name] = each
                self.ran.append(name)

    def end(self) -> None:
        if not self.held:
            return
        name = self.chance.choice(sorted(self.held))
        act = self.chance.choice(("succeed",) * 6 + ("fail", "skip", "abort", "retry", "snooze"))
        self._settle(name, act)

    def _settle(self, name: str, act: str) -> None:
        claimed = self.held.pop(name)
        ends: dict[str, Callable[[Claimed], Settlement]] = {
            "succeed": succeed, "skip": skip, "abort": abort,
            "fail": lambda held: fail(held, ERROR),
            "retry": lambda held: retry(held, ERROR, 0),
            "snooze": lambda held: snooze(held, 0),
        }  # fmt: skip
        [answer] = settle(self.store, self.clock.now, ends[act](claimed))
        assert answer.landed
        getattr(self.model, act)(name)

    def die(self) -> None:
        """The worker dies with all that it holds; what it says later is stale."""
        zombies, self.held = self.held, {}
        swept = self.store.sweep(most=1000, now=self.clock.advance(31))
        assert not swept.more
        for name in sorted(zombies, key=lambda name: zombies[name].lease_id):
            self.model.retry(name)
        for claimed in zombies.values():
            [answer] = settle(self.store, self.clock.now, succeed(claimed))
            assert answer.stale

    def cancel_one(self) -> None:
        name = self.chance.choice(sorted(self.jobs))
        self.store.cancel(self.jobs[name], now=self.clock.now)
        self.model.cancel(name)

    def cancel_all(self) -> None:
        assert self.store.cancel_workflow(self.id, now=self.clock.now) == bool(self.model.live())
        self.model.cancel_all()

    def pause(self) -> None:
        done = self.store.pause_workflow(self.id, now=self.clock.now)
        assert done == (bool(self.model.live()) and not self.model.paused)
        self.model.paused = self.model.paused or done

    def resume(self) -> None:
        assert self.store.resume_workflow(self.id, now=self.clock.now) == self.model.paused
        self.model.paused = False

    def replay(self) -> None:
        name = self.chance.choice(sorted(self.jobs))
        is_final = self.model.nodes[name].state.final
        if name == FINALISER:  # alone it makes little sense, and is another story
            return
        if is_final and FINALISER in self.held:
            with pytest.raises(InvalidInput, match="finaliser"):
                self.store.replay(self.jobs[name], now=self.clock.now)
            return
        assert self.store.replay(self.jobs[name], now=self.clock.now) == is_final
        if is_final:
            self.model.replay(name)

    def replay_lost(self, *, beside_workers: bool) -> None:
        """Nodes that were cancelled are replayed one by one, in any order.

        Nothing fails here, so a node that starts has no parent that runs afterwards.
        """
        begun = len(self.ran)
        while names := [name for name in self.model.named(CANCELLED) if name != FINALISER]:
            name = self.chance.choice(sorted(names))
            if FINALISER in self.held:
                self._settle(FINALISER, "succeed")
            assert self.store.replay(self.jobs[name], now=self.clock.now)
            self.model.replay(name)
            if beside_workers:
                for held in sorted(self.held):
                    if self.chance.random() < 0.5:
                        self._settle(held, "succeed")
                self.claim()
            self.compare()
        self.finish()
        again = self.ran[begun:]
        for name, node in self.model.nodes.items():
            if node.when in (When.ANY_SUCCEEDED, When.ANY_FAILED) or name not in again:
                continue
            later = again[again.index(name) :]
            assert not [parent for parent in node.parents if parent in later], (name, again)

    def grow(self) -> None:
        adders = [name for name in sorted(self.held) if name != FINALISER]
        if not adders:
            return
        adder = self.chance.choice(adders)
        waiting = [name for name in self.model.named(WAITING) if name != FINALISER]
        before = set(self.chance.sample(waiting, min(len(waiting), self.chance.choice((0, 1, 2)))))
        behind = before.union(*(self.model.below(name) for name in before))
        free = sorted(self.jobs.keys() - behind - {FINALISER})
        nodes, added = [], []
        for n in range(self.chance.choice((1, 2, 4))):
            name = f"g{self.grown + n}"
            older = set(self.chance.sample(free, min(len(free), self.chance.choice((0, 0, 1, 2)))))
            newer = {f"g{self.grown + n - 1}"} if n and self.chance.random() < 0.5 else set()
            when = self.chance.choice(RULES) if older | newer else When.ALL_SUCCEEDED
            nodes.append(
                GrowingNode(
                    name=name, job=job(task=f"app.{name}", max_attempts=MAX_ATTEMPTS), when=when,
                    after=(n - 1,) if newer else (), after_names=tuple(sorted(older)),
                    before_names=tuple(sorted(before)),
                )
            )  # fmt: skip
            added.append((name, Node(older | newer, when)))
        held = self.held[adder]
        ids = self.store.grow_workflow("w1", held, nodes, now=self.clock.now)
        assert (ids is None) == self.model.nodes[adder].flagged
        if ids is None:
            return
        assert self.store.grow_workflow("w1", held, nodes, now=self.clock.now) == ids
        self.grown += len(nodes)
        for (name, node), id in zip(added, ids, strict=True):
            self.jobs[name] = id
            self.model.add(name, node, before)
        self.model.begin()

    # --- what must be true -------------------------------------------------------------------

    def compare(self) -> None:
        nodes: dict[str, State] = {}
        after: int | None = 0
        while after is not None:
            page = self.store.list_nodes(self.id, after=after)
            nodes |= {node.name: node.state for node in page.nodes}
            after = page.next
        assert nodes == self.model.states
        seen = self.store.get_workflow(self.id)
        assert seen.outcome == self.model.outcome
        counted = {state: len(self.model.named(state)) for state in State}
        assert seen.counts == {state: count for state, count in counted.items() if count}

    def finish(self) -> None:
        """After all that, it can be brought to its end."""
        if self.model.paused:
            self.resume()
        for _ in range(20 * len(self.jobs)):
            if not self.model.live():
                break
            for name in sorted(self.held):
                self._settle(name, "succeed")
            self.claim()
        assert self.model.live() == []
        assert take(self.store, self.clock.now) == []


STEPS = (
    *["claim"] * 30, *["end"] * 40, *["grow"] * 6, "die", "cancel_one", "pause", *["resume"] * 2,
    *["replay"] * 3,
)  # fmt: skip


def play(store: Store, plain: Plain, seed: int, size: int, steps: int) -> Play:
    chance = random.Random(seed)
    game = Play(store, Clock(), Model(stops=chance.random() < 0.4), chance)
    game.enqueue(size)
    game.compare()
    for n in range(steps):
        step = chance.choice(STEPS)
        if step == "cancel_one" and chance.random() < 0.2:
            step = "cancel_all"
        getattr(game, step)()
        game.told.append(step)
        if n % (1 + size // 20) == 0:
            game.compare()
        if n % 10 == 0:
            check(plain)
    game.compare()
    game.finish()
    game.compare()
    check(plain)
    return game


def play_and_replay(store: Store, plain: Plain, seed: int, size: int) -> None:
    chance = random.Random(seed)
    game = Play(store, Clock(), Model(stops=chance.random() < 0.3), chance)
    game.enqueue(size)
    for _ in range(size):
        getattr(game, chance.choice(("claim", "end", "end", "grow")))()
    for name in sorted(game.held):
        game._settle(name, chance.choice(("succeed", "succeed", "snooze")))
    whole = chance.random() < 0.5
    if whole:
        game.cancel_all()
    else:
        for _ in range(size // 2):
            game.cancel_one()
    game.compare()
    game.replay_lost(beside_workers=whole)
    game.compare()
    check(plain)


@pytest.fixture
def plain(store: Store, store_url: str) -> Iterator[Plain]:  # noqa: ARG001 - the store opens first
    with Plain(store_url) as opened:
        yield opened


@pytest.mark.parametrize("style", ["sqlite-apsw", "postgres-sync"], indirect=True)
@pytest.mark.parametrize("seed", [101, 102])
def test_tiny_workflows_do_what_the_model_does(store: Store, plain: Plain, seed: int) -> None:
    assert play(store, plain, seed, 5, 40).ran


@pytest.mark.parametrize("style", ["sqlite-apsw", "postgres-sync"], indirect=True)
@pytest.mark.parametrize("seed", range(201, 209))
def test_cancelled_nodes_that_are_replayed_one_by_one_keep_their_order(
    store: Store, plain: Plain, seed: int
) -> None:
    """Seen failing with a replay that opens one node alone, and with one that calls none back."""
    play_and_replay(store, plain, seed, 12)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["sqlite-apsw", "postgres-sync"], indirect=True)
def test_a_large_cancelled_workflow_is_replayed_in_its_order(store: Store, plain: Plain) -> None:
    play_and_replay(store, plain, 210, LARGE)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["sqlite-apsw", "postgres-sync"], indirect=True)
@pytest.mark.parametrize("seed", SEEDS)
def test_small_workflows_do_what_the_model_does(store: Store, plain: Plain, seed: int) -> None:
    chance = random.Random(seed)
    game = play(store, plain, seed, chance.randint(1, 14), 120)
    assert game.ran


@pytest.mark.slow
@pytest.mark.parametrize("style", ["sqlite-apsw", "postgres-sync"], indirect=True)
@pytest.mark.parametrize("seed", [1001])
def test_large_workflows_do_what_the_model_does(store: Store, plain: Plain, seed: int) -> None:
    game = play(store, plain, seed, LARGE, 500)
    assert len(game.ran) > LARGE / 4
    assert CANCELLED in game.model.states.values() or game.grown
