"""Real processes for tests: started together, heard through files, killed without mercy.

A member runs a function of this package in a process of its own. What it has to say it appends to a
file, line by line, so that a kill loses nothing that was said before. Members come from a fork
server that has imported everything and opened nothing: they start fast and inherit no connection.

    with Crew(folder) as crew:
        crew.start(drain, url)
        crew.go()              # those who wait at the gate go all at once
        crew.join()            # fails when one of them raised
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self

import msgspec

from tests.support.patience import PATIENCE_SECONDS

P = ParamSpec("P")
Said = tuple[str, Any]

JOIN_SECONDS = 600.0

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "tenure.store",
        "tenure.store.sqlite.session",
        "tenure.store.postgres.session",
        "tests.processes.roles",
        "tests.crash.cast",
    ]
)


class Voice:
    """How a member is heard: one line of JSON per word, written at once."""

    def __init__(self, path: Path, gate: Event) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._gate = gate

    def say(self, kind: str, what: object = None) -> None:
        """Say something that a kill afterwards cannot take back."""
        os.write(self._file, msgspec.json.encode((kind, what)) + b"\n")

    def wait(self) -> None:
        """Say that we are ready, and wait for the others."""
        self.say("ready")
        assert self._gate.wait(PATIENCE_SECONDS)


@dataclass
class Member:
    """One process of the crew."""

    process: ForkServerProcess
    path: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process.pid is not None
        return self.process.pid

    def said(self, kind: str | None = None) -> list[Any]:
        """What it has said so far. A line that a kill cut short does not count."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")[:-1]
        words = [msgspec.json.decode(line) for line in lines]
        return words if kind is None else [what for said, what in words if said == kind]

    def wait_for(self, kind: str, times: int = 1) -> None:
        """Until it has said so."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self.said(kind)) < times:
            assert not self.said("error"), self.said("error")
            assert time.monotonic() < deadline, f"never said {kind!r}"
            time.sleep(0.005)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this very process."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        self.process.join(PATIENCE_SECONDS)


class Crew:
    """Some processes that live no longer than the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gate: Event = _context.Event()
        self.members: list[Member] = []

    def start(
        self, role: Callable[Concatenate[Voice, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> Member:
        """Start a member; it waits at the gate when its role says so."""
        path = self._folder / f"member-{len(self.members)}"
        process = _context.Process(
            target=_live, args=(path, self._gate, role, args, kwargs), daemon=True
        )
        process.start()
        member = Member(process, path)
        self.members.append(member)
        return member

    def go(self) -> None:
        """Open the gate when all are ready."""
        for member in self.members:
            member.wait_for("ready")
        self._gate.set()

    def join(self) -> None:
        """Wait for all; fail when one of them has raised."""
        deadline = time.monotonic() + JOIN_SECONDS
        for member in self.members:
            member.process.join(max(0.0, deadline - time.monotonic()))
            assert not member.said("error"), member.said("error")[0]
            assert member.process.exitcode is not None, "still running"
            assert member.process.exitcode in (0, -signal.SIGKILL), member.process.exitcode

    def said(self, kind: str) -> Iterator[Any]:
        """What all members have said, of one kind."""
        for member in self.members:
            yield from member.said(kind)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for member in self.members:
            if member.process.is_alive():
                member.kill()
            member.process.join(PATIENCE_SECONDS)


def _live(
    path: Path,
    gate: Event,
    role: Callable[..., None],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    voice = Voice(path, gate)
    try:
        role(voice, *args, **kwargs)
    except BaseException:
        voice.say("error", traceback.format_exc())
        raise
