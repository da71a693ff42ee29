"""What must be reached by the workloads, on one machine, in one run."""

from __future__ import annotations

from bench.peers.targets import Target

_FLAT = Target(1.5, at_most=True)
_LIMIT = Target(1.0, at_most=True)

TARGETS = {
    "workloads.sqlite.concurrent_enqueue": Target(10.0),
    "workloads.sqlite.concurrent_enqueue_threads": Target(10.0),
    "workloads.postgres.backlog_pages": _FLAT,
    "workloads.sqlite.backlog_pages": _FLAT,
    "workloads.postgres.held_snapshot_pages": _FLAT,
    "workloads.postgres.wal_bytes_per_job": _LIMIT,
    "workloads.postgres.commits_per_job": _LIMIT,
    "workloads.postgres.statistics": Target(0.97),
    "workloads.sqlite.statistics": Target(0.97),
}
