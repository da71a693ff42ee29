"""Ours and a peer take turns: at least three rounds, `ratio` = ours / theirs in each.

Within a round the two run one after the other, in alternating order, each on a fresh database. Both
do as many jobs as take them a few seconds: the number differs, the rate is what is compared.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

import msgspec

from bench.harness import BenchmarkFailed, Result
from bench.lab import Lab
from bench.peers.adapter import Adapter
from bench.peers.catalogue import load
from bench.peers.environments import PeerUnavailable, python_for
from bench.peers.trial import Trial, trial

Turn = dict[str, float]
"""The figures of one side in one round."""


class Competitor(msgspec.Struct, frozen=True):
    """An adapter and the interpreter that runs it."""

    adapter: type[Adapter]
    python: str

    def trial(self, lab: Lab, jobs: int) -> AbstractContextManager[Trial]:
        """A fresh trial with a board for so many jobs."""
        return trial(lab, self.adapter, self.python, jobs=jobs)


Measure = Callable[[Lab, Competitor], Turn]


class Pair(msgspec.Struct, frozen=True):
    """Two that are compared, under the beginning and the end of a result's name."""

    workload: str
    peer_name: str
    ours: Competitor
    peer: Competitor

    def named(self, figure: str = "") -> str:
        """The name of a result: `peers.postgres.pickup` + `_p99` + `.pgqueuer`."""
        return f"{self.workload}{figure}.{self.peer_name}"


def say(words: str) -> None:
    """Progress, for whoever waits."""
    print(f"# {words}", file=sys.stderr, flush=True)


def names(workload: str, peers: Sequence[str], figures: Sequence[str] = ("",)) -> tuple[str, ...]:
    """The names of a workload's results."""
    return tuple(f"{workload}{figure}.{peer}" for peer in peers for figure in figures)


def compete(
    lab: Lab,
    workload: str,
    ours: str,
    peers: Sequence[str],
    results: Callable[[Lab, Pair], Iterator[Result]],
    *,
    figures: Iterable[str] = ("",),
) -> Iterator[Result]:
    """The results of all peers that this run asks for. One that fails does not end the others."""
    for name in peers:
        if not any(lab.wants(f"{workload}{figure}.{name}", peer=name) for figure in figures):
            continue
        try:
            pair = Pair(workload, name, _competitor(ours), _competitor(name))
            yield from results(lab, pair)
        except (PeerUnavailable, BenchmarkFailed) as error:
            lab.failures.append(f"{workload}.{name}: {error}")
            say(lab.failures[-1])


def _competitor(name: str) -> Competitor:
    adapter = load(name)
    return Competitor(adapter, python_for(adapter, say))


def take_turns(lab: Lab, pair: Pair, measure: Measure) -> list[tuple[Turn, Turn]]:
    """Ours, theirs, theirs, ours, ... The figures of each round."""
    rounds: list[tuple[Turn, Turn]] = []
    for number in range(lab.rounds):
        say(f"{pair.named()}: round {number + 1} of {lab.rounds}")
        if number % 2:
            theirs = measure(lab, pair.peer)
            rounds.append((measure(lab, pair.ours), theirs))
        else:
            rounds.append((measure(lab, pair.ours), measure(lab, pair.peer)))
    return rounds


def compare_turns(
    name: str, pair: Pair, rounds: Sequence[tuple[Turn, Turn]], figure: str, unit: str
) -> Result:
    """Medians over the rounds of one figure; everything else that was seen goes into the detail."""
    ours = [mine[figure] for mine, _ in rounds]
    theirs = [other[figure] for _, other in rounds]
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    against = statistics.median(theirs)
    return Result(
        name=name,
        value=round(statistics.median(ours), 2),
        unit=unit,
        ratio=round(statistics.median(ratios), 3),
        against=f"{pair.peer_name}: {against:,.{0 if against >= 100 else 2}f}",
        spread=(round(min(ratios), 3), round(max(ratios), 3)),
        detail={
            "theirs": round(against, 2),
            "our_rounds": [round(value, 2) for value in ours],
            "their_rounds": [round(value, 2) for value in theirs],
            "ours_saw": _medians([mine for mine, _ in rounds]),
            "theirs_saw": _medians([other for _, other in rounds]),
            "our_settings": pair.ours.adapter.settings,
            "their_settings": pair.peer.adapter.settings,
            "their_packages": list(pair.peer.adapter.packages),
        },
    )


def _medians(turns: Sequence[Turn]) -> Turn:
    return {key: round(statistics.median(turn[key] for turn in turns), 3) for key in turns[0]}
