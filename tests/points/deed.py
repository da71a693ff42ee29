"""An operation at whose statements a process dies: its scene, the call, and who carries on.

A deed knows nothing of points. It says what must have become of all jobs in the end, whether or not
the call had landed. What must be true of any operation is checked for all of them: see judge.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal

from tenure.rules.claim import Claimed
from tenure.rules.lifecycle import Settlement
from tenure.store import Store
from tenure.testing.recorder import Ended, Started
from tests.points.records import Records
from tests.support.plain import Plain
from tests.support.stores import Clock
from tests.support.work import take

VICTIM, SUCCESSOR = "victim", "successor"
End = Callable[[Claimed], Settlement]


@dataclass
class Hand:
    """What a process works with: a store whose calls are recorded, and the time of the scene."""

    store: Store
    clock: Clock
    url: str
    records: Records

    @property
    def now(self) -> datetime:
        """For every call."""
        return self.clock.now

    def take(self, most: int = 100, *, worker: str = VICTIM, **options: Any) -> list[Claimed]:
        """Claim, and start the handlers of what was claimed."""
        held = take(self.store, self.now, most, worker=worker, **options)
        for one in held:
            self.records.write(Started(id=one.id, token=one.token, worker=worker))
        return held

    def ended(self, held: Claimed, worker: str = VICTIM) -> None:
        """A handler has ended."""
        self.records.write(Ended(id=held.id, token=held.token, worker=worker))


class Deed(ABC):
    """One operation; what `lay` finds out is there for all processes that follow."""

    name: ClassVar[str]
    call: ClassVar[str]
    """The operation of the store that it makes."""
    about: ClassVar[str]
    """The statement, or the beginning of its name, without which it would be another operation."""
    driver: ClassVar[Literal["apsw", "sqlite3"]] = "apsw"
    has_effects: ClassVar[bool] = False
    """Each job writes a row of the ledger, in the transaction that completes it."""
    forgets: ClassVar[bool] = False
    """What has ended may be gone."""
    by_hand: ClassVar[Collection[str]] = ()
    """What is wrong with its history because the scene was laid by hand."""
    endings: ClassVar[Mapping[str, End]] = {}
    """How tasks end, when another worker runs them; others succeed."""

    def lay(self, hand: Hand, plain: Plain) -> None:  # noqa: B027 - some need no scene
        """Lay the scene."""

    @abstractmethod
    def do(self, hand: Hand) -> None:
        """Make the call. This is where the process dies."""

    def again(self, hand: Hand) -> None:  # noqa: B027 - most need nothing
        """What others do next who know nothing of it: a caller repeats it, an operator goes on."""

    def work(self, hand: Hand, held: Claimed) -> None:  # noqa: B027 - most do nothing
        """What the handler does, when another worker runs it."""

    @abstractmethod
    def ends(self, *, landed: bool) -> Counter[str] | None:
        """How many jobs there are in the end in each state; None: that is not certain."""

    def check(self, hand: Hand, *, landed: bool) -> None:  # noqa: B027 - most need no more
        """What else must be true in the end."""


def all_of(count: int) -> Counter[str]:
    """So many jobs, and all of them succeeded."""
    return +Counter(succeeded=count)
