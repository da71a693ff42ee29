"""The rows that statements return: ends, readers and hooks."""

from typing import NamedTuple

from tenure.rules.ends import Ended, FeedReader
from tenure.rules.job import State
from tenure.store.records import Flag, Returned, Time
from tenure.store.session import Tx


class EndRow(NamedTuple):
    """One end of the feed."""

    place: int
    id: int
    token: int
    state: str
    task: str
    queue: str
    tenant: str
    attempts: int
    finished_at: Time
    duration_seconds: float | None
    worker: str | None
    reason: str | None
    error_type: str | None
    error_message: str | None

    def ended(self, tx: Tx) -> Ended:
        """As clients read it."""
        values = self._asdict()
        values |= {"state": State(self.state), "finished_at": tx.when(self.finished_at)}
        return Ended(**values)


class ReaderRow(NamedTuple):
    """One reader. `unseen_seconds`: how long it has not read."""

    tenant: str
    name: str
    position: int
    created_at: Time
    seen_at: Time
    lost_at: Time
    unread: int
    unseen_seconds: float
    unplaced: Flag
    """There are ends that have no place yet."""

    def reader(self, tx: Tx) -> FeedReader:
        """As clients read it."""
        return FeedReader(
            name=self.name, tenant=self.tenant, position=self.position,
            created_at=tx.when(self.created_at), seen_at=tx.when(self.seen_at),
            lost_at=tx.when_or_none(self.lost_at), unread=self.unread,
        )  # fmt: skip


class HookRow(NamedTuple):
    """One hook. Without a task: of all tasks."""

    task: str
    hook: str
    parameter: str
    job: str


RETURNED_BY: Returned = {
    EndRow: ("read_feed",),
    ReaderRow: ("read_readers",),
    HookRow: ("read_hooks",),
}
