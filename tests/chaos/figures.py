"""What is told at the end: the disturbances of each store, and how long lost jobs waited.

The second table counts from the blow to the start of the job's next attempt. *Not starved* are
those in whose time the control was late by less than a tenth: only these can be held against us.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tests.chaos.play import BOUND_SECONDS, Seen
from tests.support.recovery import Recovery

STARVED = 0.1
COLUMNS = (
    "kills", "stopped past the lease", "asked to end", "cuts", "restarts, fast", "immediate",
    "jobs", "workflows", "ticks", "runs", "lost attempts", "violations", "seconds",
)  # fmt: skip
ACTS = ("kill", "pause", "end", "cut", "restart", "crash")


def table(seen: Mapping[str, Sequence[Seen]]) -> Iterator[str]:
    """Both tables, as Markdown."""
    yield f"| store | {' | '.join(COLUMNS)} |"
    yield "|---|" + "--:|" * len(COLUMNS)
    for store, plays in seen.items():
        done: Counter[str] = sum((play.done for play in plays), Counter())
        sums = [
            sum(getattr(play, name) for play in plays)
            for name in ("jobs", "workflows", "ticks", "runs", "lost_attempts")
        ]
        figures = [*(done[act] for act in ACTS), *sums, 0, round(sum(p.seconds for p in plays))]
        yield f"| {store} | " + " | ".join(f"{figure:,}" for figure in figures) + " |"
    yield ""
    yield "| store | hit by | lost attempts | p50 | p95 | max | not starved | p50 | p95 | max |"
    yield "|---|---|" + "--:|" * 8
    for store, plays in seen.items():
        every = [each for play in plays for each in play.recoveries]
        for kind in sorted({each.kind for each in every}):
            own = [each for each in every if each.kind == kind]
            fair = [each for each in own if not is_starved(each)]
            yield f"| {store} | {kind} | {_spread(own)} | {_spread(fair)} |"
    yield f"\nAt most {BOUND_SECONDS:.2f} s are allowed: lease + poll + 1 s."


def is_starved(each: Recovery) -> bool:
    """Was the machine, or the database, away for a tenth of the time?"""
    return each.stalled > STARVED * each.seconds


def _spread(found: Sequence[Recovery]) -> str:
    if not found:
        return "0 | | | "
    seconds = [each.seconds for each in found]
    cuts = (
        statistics.quantiles(seconds, n=20, method="inclusive")
        if len(seconds) > 1
        else seconds * 20
    )
    return f"{len(seconds):,} | {cuts[9]:.2f} | {cuts[18]:.2f} | {max(seconds):.2f}"
