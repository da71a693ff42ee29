"""One turn of a drain: enqueue, let everything settle, and let worker processes run it all."""

from __future__ import annotations

from bench.lab import Lab
from bench.peers.contest import Competitor, Turn


def drain(lab: Lab, competitor: Competitor, *, workers: int) -> Turn:
    """The figures of one turn."""
    jobs = lab.few(competitor.adapter.drain_jobs)
    with competitor.trial(lab, jobs) as one:
        one.enqueue_many(0, jobs)
        one.place.settle_down()
        seen = one.drain(0, jobs, workers)
    turn = {
        "jobs_per_second": seen.rate,
        "jobs": float(jobs),
        "twice": float(seen.twice),
        "worker_cpu_us_per_job": seen.worker_cpu_us_per_job,
        "worker_mib": seen.worker_mib,
    }
    if seen.wal_bytes_per_job is not None and seen.commits_per_job is not None:
        turn["wal_bytes_per_job"] = seen.wal_bytes_per_job
        turn["commits_per_job"] = seen.commits_per_job
    return turn
