"""What must be reached, on one machine, in one run, with history kept."""

from __future__ import annotations

import msgspec

from bench.peers.catalogue import ON_POSTGRES


class Target(msgspec.Struct, frozen=True):
    """A limit of a ratio: at least so much, or at most if lower is better."""

    limit: float
    at_most: bool = False

    def is_met(self, ratio: float) -> bool:
        """Does this ratio reach it?"""
        return ratio <= self.limit if self.at_most else ratio >= self.limit

    def __str__(self) -> str:
        return f"{'at most' if self.at_most else 'at least'} {self.limit:g}"


_TENFOLD = [name for name in ON_POSTGRES if name not in {"pgqueuer", "awa"}]

TARGETS = {
    "peers.postgres.drain1.pgqueuer": Target(2.5),
    "peers.postgres.drain1.awa": Target(5.0),
    **{f"peers.postgres.drain1.{name}": Target(10.0) for name in _TENFOLD},
    "peers.postgres.drain2.pgqueuer": Target(2.0),
    "peers.sqlite.drain1.huey": Target(12.0),
    "peers.sqlite.drain1_thread.huey": Target(5.0),
    "peers.postgres.enqueue.pgqueuer": Target(1.3),
    "peers.sqlite.enqueue.huey": Target(10.0),
    "peers.sqlite.enqueue.litequeue": Target(1.2),
    "peers.sqlite.concurrent_enqueue": Target(10.0),
    **{
        f"peers.postgres.pickup{figure}.{name}": Target(1.3, at_most=True)
        for figure in ("", "_p99")
        for name in ON_POSTGRES
    },
    "peers.postgres.pickup_idle_cpu.pgqueuer": Target(1.0, at_most=True),
}
