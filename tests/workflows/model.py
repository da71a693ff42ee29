"""What a workflow should do, written down a second time and as plainly as can be.

No edges to an end, no rows, no locks: after each step every waiting node is looked at, and the
workflow is over when all of its nodes are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tenure.rules.job import State, When

WAITING, QUEUED, RUNNING = State.WAITING, State.QUEUED, State.RUNNING
SUCCEEDED, FAILED, CANCELLED, SKIPPED = (
    State.SUCCEEDED, State.FAILED, State.CANCELLED, State.SKIPPED,
)  # fmt: skip
FINAL = {SUCCEEDED, FAILED, CANCELLED, SKIPPED}
FINALISER = "fin"
MAX_ATTEMPTS = 3


@dataclass
class Node:
    """One node."""

    parents: set[str]
    when: When = When.ALL_SUCCEEDED
    state: State = WAITING
    flagged: bool = False
    attempts: int = 0


@dataclass
class Model:
    """One workflow."""

    stops: bool
    nodes: dict[str, Node] = field(default_factory=dict)
    paused: bool = False
    failed: bool = False
    stopped: bool = False
    cancelled: bool = False
    asked: bool = False
    """The workflow was cancelled as a whole."""

    @property
    def states(self) -> dict[str, State]:
        return {name: node.state for name, node in self.nodes.items()}

    @property
    def outcome(self) -> str | None:
        if any(node.state not in FINAL for node in self.nodes.values()):
            return None
        return "failed" if self.failed else "cancelled" if self.cancelled else "succeeded"

    def live(self) -> list[str]:
        return [name for name, node in self.nodes.items() if node.state not in FINAL]

    def named(self, *states: State) -> list[str]:
        return [name for name, node in self.nodes.items() if node.state in states]

    def below(self, name: str) -> set[str]:
        """All that waits for this node, near and far."""
        found: set[str] = set()
        todo = [name]
        while todo:
            here = todo.pop()
            for child, node in self.nodes.items():
                if here in node.parents and child not in found:
                    found.add(child)
                    todo.append(child)
        return found

    # --- what happens ------------------------------------------------------------------------

    def begin(self) -> None:
        self._look()

    def succeed(self, name: str) -> None:
        self._end(name, SUCCEEDED)

    def fail(self, name: str) -> None:
        self._end(name, FAILED)

    def skip(self, name: str) -> None:
        self._end(name, SKIPPED)

    def abort(self, name: str) -> None:
        self._end(name, CANCELLED)

    def retry(self, name: str) -> None:
        """An error, or a worker that died: the attempt is charged."""
        node = self.nodes[name]
        if node.flagged:
            self._end(name, CANCELLED)
        elif node.attempts + 1 >= MAX_ATTEMPTS:
            self._end(name, FAILED)
        else:
            node.attempts += 1
            node.state = QUEUED

    def snooze(self, name: str) -> None:
        if self.nodes[name].flagged:
            self._end(name, CANCELLED)
        else:
            self.nodes[name].state = QUEUED

    def cancel(self, name: str) -> None:
        self._cancel([name])

    def cancel_all(self) -> None:
        others = [name for name in self.live() if name != FINALISER]
        self.asked = self.asked or bool(self.live())
        self._cancel(others or self.live())

    def add(self, name: str, node: Node, before: set[str]) -> None:
        self.nodes[name] = node
        for each in before:
            self.nodes[each].parents.add(name)

    def replay(self, name: str) -> None:
        back = {name}
        if self.asked or (self.stops and self.failed):
            back |= set(self.named(CANCELLED))
        size = 0
        while size < len(back):
            size = len(back)
            back |= {
                child for child, node in self.nodes.items()
                if node.state in (SKIPPED, CANCELLED) and node.parents & back
            }  # fmt: skip
        final = self.nodes.get(FINALISER)
        if final is not None and final.state in FINAL:
            back.add(FINALISER)
        elif final is not None:
            final.state = WAITING
        for each in back:
            node = self.nodes[each]
            node.state, node.flagged, node.attempts = WAITING, False, 0
        for child in self.named(QUEUED):
            if self.nodes[child].parents & back:
                self.nodes[child].state = WAITING
        if all(self.nodes[parent].state.final for parent in self.nodes[name].parents):
            self.nodes[name].state = QUEUED
        self.failed = bool(self.named(FAILED))
        self.cancelled = bool(self.named(CANCELLED))
        self.stopped = self.asked = False
        self._look()

    # --- what follows ------------------------------------------------------------------------

    def _end(self, name: str, state: State) -> None:
        self.nodes[name].state = state
        self._look()
        self._note()
        if self.stops and state is FAILED and not self.stopped and self.outcome is None:
            self.stopped = True
            rules = (When.ALL_SUCCEEDED, When.ANY_SUCCEEDED)
            self._cancel([n for n in self.live() if n != FINALISER and self.nodes[n].when in rules])

    def _cancel(self, names: list[str]) -> None:
        for name in names:
            node = self.nodes[name]
            if node.state is RUNNING:
                node.flagged = True
            elif node.state not in FINAL:
                node.state = CANCELLED
        self._look()
        self._note()

    def _note(self) -> None:
        self.failed = self.failed or bool(self.named(FAILED))
        self.cancelled = self.cancelled or bool(self.named(CANCELLED))

    def _look(self) -> None:
        """Free or skip what waits, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for name in self.named(WAITING):
                state = self._decide(name)
                if state is not None:
                    self.nodes[name].state = state
                    changed = True

    def _decide(self, name: str) -> State | None:
        node = self.nodes[name]
        if name == FINALISER:
            others = [n for n in self.live() if n != FINALISER]
            return None if others else QUEUED
        ends = [self.nodes[parent].state for parent in node.parents]
        over = all(end in FINAL for end in ends)
        match node.when:
            case When.ALL_SUCCEEDED:
                runs = all(end is SUCCEEDED for end in ends)
            case When.ALL_FINISHED:
                runs = over
            case When.ANY_SUCCEEDED:
                runs = SUCCEEDED in ends
            case _:
                runs = FAILED in ends
        return QUEUED if runs else SKIPPED if over else None
