"""What a seed stands for: how many of whom, what goes wrong, and how often."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from tenure.tasks import TimingOptions
from tests.simulation.faults import CALM, Weather


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything about a run that is drawn before it begins."""

    seed: int
    repeats: bool
    threads: bool
    workers: int
    producers: int
    operators: int
    calls: int
    flow_share: float
    """Of the calls of producers, those that enqueue a workflow."""
    call_seconds: float
    operate_seconds: float
    slots: int
    lease_seconds: float
    storm_seconds: float
    least_seconds: float = 0.0
    """So long the storm lasts at least."""
    strike_seconds: float
    strikes: dict[str, float]
    crash_share: float
    weather: Weather
    schedules: dict[str, TimingOptions]
    hand_kb: int
    """A worker claims no more kilobytes of arguments and results than this."""


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    random = Random(f"plan {seed}")
    late = Random(f"late {seed}")
    sizes = Random(f"sizes {seed}")
    share = random.choice((0.0, 0.005, 0.02, 0.05))
    weather = Weather(
        failing=share * random.random(), undone=share * random.random(),
        lost=share * random.random(), busy=share * random.random() / 2,
        slow=0.02 * random.random(), slow_seconds=random.choice((0.1, 1.0, 4.0)),
        slow_settling=0.2 * random.random() ** 2, waiting=0.02 * random.random(),
        late=share * late.random(), late_seconds=late.choice((0.1, 1.0, 4.0)),
    )  # fmt: skip
    strikes = {what: random.random() ** 2 for what in ("kill", "pause", "cut", "jump", "stop")}
    repeats = random.random() < 0.5
    return Plan(
        seed=seed,
        repeats=repeats,
        threads=random.random() < 0.5,
        workers=random.choice((1, 2, 2, 3)),
        producers=random.choice((1, 2, 3)),
        operators=random.choice((1, 2)),
        calls=random.choice((60, 120, 180)),
        flow_share=random.choice((0.0, 0.1, 0.3)),
        call_seconds=random.choice((0.02, 0.05, 0.1)),
        operate_seconds=random.choice((0.02, 0.05, 0.2)),
        slots=random.choice((1, 4, 20)),
        lease_seconds=random.choice((0.7, 1.0, 2.0)),
        storm_seconds=30.0,
        strike_seconds=random.choice((0.3, 1.0, 3.0)),
        strikes=strikes,
        crash_share=random.choice((0.0, 0.002, 0.01)),
        weather=CALM if random.random() < 0.1 else weather if repeats else replace(weather, late=0),
        schedules={
            "every": {"every_seconds": 1.0, "catch_up": random.choice(("skip", "latest", "all"))},
            "alone": {"every_seconds": 1.0, "overlap": "skip", "jitter_seconds": 0.5},
        },
        hand_kb=sizes.choice((4, 16, 64)),
    )  # fmt: skip
