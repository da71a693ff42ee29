"""Drain rates on PostgreSQL while an old snapshot is held open, round by round, against each peer.

Both have a database and a snapshot of their own, and take turns. The first round is before the
snapshot. The value is our rate in the last two rounds, the ratio is against theirs; the spread is
that of all rounds under the snapshot, and the detail has both curves.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench.harness import Result
from bench.lab import Lab
from bench.peers.catalogue import ON_POSTGRES
from bench.peers.contest import Competitor, Pair, compete, names, say
from bench.peers.trial import Trial

WORKLOAD = "peers.postgres.held_snapshot"
NAMES = names(WORKLOAD, ON_POSTGRES)
SHARE = 2
"""A round is this part of a usual drain."""


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    yield from compete(lab, WORKLOAD, "tenure-postgres", ON_POSTGRES, _results)


def _results(lab: Lab, pair: Pair) -> Iterator[Result]:
    held = lab.size(10, 3)
    mine, other = (_jobs(lab, side) for side in (pair.ours, pair.peer))
    ours: list[float] = []
    theirs: list[float] = []
    with (
        pair.ours.trial(lab, mine * (held + 1)) as our_trial,
        pair.peer.trial(lab, other * (held + 1)) as their_trial,
    ):
        for number in range(held + 1):
            say(f"{pair.named()}: round {number} of {held}")
            if number == 1:
                our_trial.place.hold_snapshot()
                their_trial.place.hold_snapshot()
            ours.append(_round(our_trial, number, mine))
            theirs.append(_round(their_trial, number, other))
    ratios = [a / b for a, b in zip(ours[1:], theirs[1:], strict=True)]
    our_end, their_end = statistics.mean(ours[-2:]), statistics.mean(theirs[-2:])
    yield Result(
        name=pair.named(),
        value=round(our_end, 1),
        unit="jobs/s",
        ratio=round(our_end / their_end, 3),
        against=f"{pair.peer_name}: {their_end:,.0f}",
        spread=(round(min(ratios), 3), round(max(ratios), 3)),
        detail={
            "theirs": round(their_end, 1),
            "our_curve": [round(rate) for rate in ours],
            "their_curve": [round(rate) for rate in theirs],
            "our_jobs_per_round": mine,
            "their_jobs_per_round": other,
            "our_rate_kept": round(our_end / ours[0], 3),
            "their_rate_kept": round(their_end / theirs[0], 3),
        },
    )


def _jobs(lab: Lab, side: Competitor) -> int:
    return lab.few(side.adapter.drain_jobs) // SHARE


def _round(one: Trial, number: int, jobs: int) -> float:
    first, end = number * jobs, (number + 1) * jobs
    one.enqueue_many(first, end)
    return one.drain(first, end, workers=1).rate
