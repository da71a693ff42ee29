"""What a job needs to run, what a claim takes, and what it returns. Pure.

    Ask, Demand                   how much a claim wants, and how much it still wants
    Claim: Leases, Claimed jobs   the jobs that a worker receives
    Permits                       how many of them it may run at once at a gate

A job needs a slot of one kind: on the event loop, in a thread, or in a child process. The number
that says so is stored with the job and on its ticket, so a claim takes only jobs for which the
worker has room, and a full kind of slot does not hold up the jobs of another kind. A ticket also
carries the size of its job, so a claim is bounded by bytes as well as by number.

A number stands for a set of resources, and only this module knows which one: the stores compare and
count numbers. So a new resource is a new number here, not another mechanism.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, Literal, Protocol, TypeVar

import msgspec

Kind = Literal["async", "thread", "process"]
"""How a worker runs a handler."""

UNKNOWN: Final = 0
"""It was enqueued by its name alone, without the task."""
NEEDS: Final[Mapping[Kind, int]] = {"async": 1, "thread": 2, "process": 3}
"""What a job of each kind needs."""
KINDS: Final[Mapping[int, Kind]] = {needs: kind for kind, needs in NEEDS.items()}
ALL_NEEDS: Final = (UNKNOWN, *KINDS)
MAX_CLAIM_KB: Final = 32 * 1024
"""The most that a claim takes unless it says otherwise, in kilobytes of arguments and metadata."""
MAX_SIZE_KB: Final = 2**15 - 1
"""A larger job counts as one of this size."""


def size_in_kb(*texts: bytes | str | None) -> int:
    """The size of a job with these arguments, metadata and policy. Replays compute it in SQL."""
    size = 0
    for text in texts:
        if text is not None:
            size += len(text.encode() if isinstance(text, str) and not text.isascii() else text)
    return min(size >> 10, MAX_SIZE_KB)


class Sized(Protocol):
    """A ticket, or a job: what it needs, and its size."""

    @property
    def needs(self) -> int: ...
    @property
    def size_kb(self) -> int: ...


J = TypeVar("J", bound=Sized)


class Ask(msgspec.Struct, frozen=True):
    """How many jobs to take from one queue: in all, and of those with the same needs."""

    most: int
    of: Mapping[int, int]

    @classmethod
    def any(cls, most: int) -> "Ask":
        """Take jobs whatever they need."""
        return cls(most, dict.fromkeys(ALL_NEEDS, most))


class Demand:
    """How much one claim still wants: of each queue, by needs, and in kilobytes.

    `taken`: the claim has taken jobs already. Its first one may be larger than `max_kb`.
    """

    __slots__ = ("_asks", "_kb", "_left", "_most", "_taken")

    def __init__(self, asks: Mapping[str, Ask], max_kb: int, *, taken: bool = False) -> None:
        self._asks = asks
        self._most = {queue: ask.most for queue, ask in asks.items()}
        self._left = {queue: dict(ask.of) for queue, ask in asks.items()}
        self._kb = max_kb
        self._taken = taken

    def fits(self, queue: str, needs: int, kb: int) -> bool:
        """May this job be taken, too?"""
        return self._has_room(queue, needs) and self._fits(kb)

    def _has_room(self, queue: str, needs: int) -> bool:
        return self._most[queue] > 0 and self._left[queue].get(needs, 0) > 0

    def _fits(self, kb: int) -> bool:
        return kb <= self._kb or not self._taken

    def take(self, queue: str, needs: int, kb: int) -> None:
        """A job was taken."""
        left = self._left[queue]
        if needs in left:
            left[needs] -= 1
        self._most[queue] -= 1
        self._kb -= kb
        self._taken = True

    def take_all(self, queue: str, counts: Mapping[int, int], kb: int) -> None:
        """Jobs were taken that are known to fit: their numbers by needs, and their kilobytes."""
        left, total = self._left[queue], sum(counts.values())
        for needs in left:
            left[needs] -= counts.get(needs, 0)
        self._most[queue] -= total
        self._kb -= kb
        self._taken = self._taken or total > 0

    def first_fitting(self, queue: str, jobs: Iterable[J]) -> list[J]:
        """Take what fits of these jobs, which come in the order of the line, and return it.

        A job with needs for which there is no room left is passed over. If there is room for it
        and it is too large for now, no job of its queue overtakes it.
        """
        taken: list[J] = []
        for job in jobs:
            if not self._has_room(queue, job.needs):
                continue
            if not self._fits(job.size_kb):
                break
            self.take(queue, job.needs, job.size_kb)
            taken.append(job)
        return taken

    def wants(self, queue: str, needs: int) -> bool:
        """Did the claim want any job like this?"""
        return self._asks[queue].of.get(needs, 0) > 0

    def take_kb(self, kb: int) -> bool:
        """Take jobs of this size, if they are not too large. No more are wanted of their queue."""
        if kb > self._kb:
            return False
        self._kb -= kb
        self._taken = True
        return True

    @property
    def kb(self) -> int:
        """How many kilobytes are left."""
        return max(0, self._kb)

    def rest(self) -> dict[str, Ask]:
        """What is still wanted of each queue."""
        rest = {}
        for queue, most in self._most.items():
            of = {needs: left for needs, left in self._left[queue].items() if left > 0}
            if of and most > 0:
                rest[queue] = Ask(most, of)
        return rest


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """One job that a worker has claimed. `token` fences every write about this attempt."""

    id: int
    token: int
    lease_id: int
    task: str
    args: str
    queue: str
    priority: int
    tenant: str
    attempts: int
    max_attempts: int
    crashes: int
    created_at: datetime
    timeout_seconds: float | None
    retry: str | None
    metadata: str | None
    features: int
    needs: int = UNKNOWN
    """Which slots it needs, as far as its ticket says."""
    queued_at: datetime | None = None
    """Since when it was ready; None: since its creation."""

    @property
    def size_kb(self) -> int:
        """About how many kilobytes it takes in the worker."""
        return size_in_kb(self.args, self.metadata, self.retry)


class Lease(msgspec.Struct, frozen=True):
    """One worker's claim on a block of jobs until `expires_at`. Heartbeats extend it."""

    id: int
    worker: str
    claimed_at: datetime
    expires_at: datetime
    jobs: tuple[Claimed, ...]


class Permits(msgspec.Struct, frozen=True):
    """The permits of a worker at one gate, as its last claim there has returned them."""

    gate: str
    key: str
    """Empty where all keys share the limit."""
    most: int
    """The worker runs no more of these jobs at once."""
    jobs: frozenset[int]
    """The ids of the jobs that this claim took."""


class Claim(list[Lease]):
    """The leases of one claim, and what its worker has to know besides."""

    __slots__ = ("more", "permits")

    def __init__(
        self,
        leases: Iterable[Lease] = (),
        permits: tuple[Permits, ...] = (),
        more: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(leases)
        self.permits = permits
        """Of the worker, at each gate that limits how many of these jobs run at once."""
        self.more = more
        """Queues at whose gates the claim had no time to look at all lines: claim there again."""

    def plus(self, other: "Claim") -> "Claim":
        """Both together. Where both have permits of one gate, the later ones come last."""
        return Claim([*self, *other], self.permits + other.permits, self.more | other.more)
