"""What goes wrong between a process and the store, request by request, drawn by the seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.simulation.hub import Fiber


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one request."""

    there_seconds: float
    """From the caller to the store."""
    back_seconds: float
    arrives: bool = True
    """Or: an error before anything was done."""
    commits: bool = True
    """Or: everything was done, and then undone."""
    answered: bool = True
    """Or: it was committed, and the answer is lost."""
    busy: bool = False
    """Somebody holds a lock for too long."""
    outlives: bool = True
    """It is carried out although its sender has died on the way."""
    waited_seconds: float = 0.0
    """For the write lock."""
    late_seconds: float = 0.0
    """Its sender is cut off at once, and it arrives so much later, unless it is ended before."""


@dataclass(frozen=True, kw_only=True)
class Weather:
    """How likely each fault is."""

    failing: float = 0.0
    undone: float = 0.0
    lost: float = 0.0
    busy: float = 0.0
    slow: float = 0.0
    slow_seconds: float = 0.0
    slow_settling: float = 0.0
    """Of settlements: heartbeats must bridge it."""
    waiting: float = 0.0
    late: float = 0.0
    late_seconds: float = 0.0


CALM = Weather()
ENQUEUES_LATE = 6
"""An enqueue is late so many times as often: most of them draw ids, or their job is still live."""


def trouble(sender: Fiber, op: str, seconds: float) -> None:
    """A request goes wrong. A heartbeat's may cost any lease, a claim's what it has claimed."""
    if sender.renews:
        sender.process.trouble(seconds)
    elif op == "claim":
        sender.process.trouble_claim(seconds)


class Faults:
    """Draws fates, by the weather of the moment."""

    def __init__(self, random: Random, weather: Weather) -> None:
        self.random = random
        self.weather = weather
        self.counts: dict[str, int] = {}

    def count(self, what: str) -> None:
        """One more of these has happened."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def draw(self, sender: Fiber, now: float, *, op: str, reads: bool) -> Fate:
        """The fate of a request."""
        process = sender.process
        random, weather = self.random.random, self.weather
        there, back = 0.0002 + 0.001 * random(), 0.0001 + 0.001 * random()
        if process.cut_until > now:
            self.count("cut")
            return Fate(there, back, arrives=False)
        if weather is CALM:
            return Fate(there, back)
        outlives = random() < 0.5
        waited = 0.0
        settles = op == "settle" and not sender.renews
        if random() < (weather.slow_settling if settles else weather.slow):
            self.count("delayed")
            late = weather.slow_seconds * random()
            trouble(sender, op, late)
            if random() < 0.5:
                there += late
            else:
                back += late
        if random() < weather.waiting:
            waited = 2.0
        chance = random()
        late_share = weather.late * (ENQUEUES_LATE if op == "enqueue" else 1)
        for kind, share in (
            ("failed", weather.failing), ("undone", weather.undone), ("lost", weather.lost),
            ("busy", weather.busy), ("late", late_share),
        ):  # fmt: skip
            if chance < share and kind == "late" and not reads:
                self.count(kind)
                late = weather.late_seconds * random()
                trouble(sender, op, late)
                return Fate(there, back, late_seconds=late)
            if chance < share:
                what = "failed" if reads and kind in ("undone", "lost", "late") else kind
                self.count(what)
                trouble(sender, op, there + back)
                return Fate(
                    there, back, arrives=what not in ("failed", "busy"), commits=what != "undone",
                    answered=what != "lost", busy=what == "busy", outlives=outlives,
                )  # fmt: skip
            chance -= share
        return Fate(there, back, outlives=outlives, waited_seconds=waited)
