"""One seed, one run: what happened, and what is wrong with it."""

from __future__ import annotations

import gc
import logging
import os
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.judge import judge
from tests.simulation.plan import draw
from tests.simulation.stage import NotQuiet, Stage

log = logging.getLogger("tenure")


@dataclass
class Result:
    """What came of a seed."""

    seed: int
    wrong: str
    counts: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    """After the last kill: when its jobs ran again, in seconds beyond the length of a lease."""
    story: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    """What every process did, if that was asked for."""

    def told(self) -> str:
        """In words."""
        lines = [f"seed {self.seed}: {self.counts['steps']} steps, {len(self.story)} strokes"]
        if self.wrong:
            lines += [
                self.wrong,
                "what was done to the processes:",
                *(f"    {line}" for line in self.story),
                f"again: python -m tests.simulation --seed {self.seed}",
            ]
        return "\n".join(lines)


def run_seed(seed: int, *, trace: bool = False) -> Result:
    """Play it, and judge it."""
    gc.disable()  # a collection in a run would end what a killed process left behind
    gc.freeze()  # what is there before a run is not looked at after it
    log.setLevel(logging.CRITICAL + 1)
    stage = Stage(draw(seed))
    try:
        try:
            stage.play()
            wrong = judge(stage)
        except NotQuiet as error:
            wrong = f"it does not come to rest (invariant 13): {error}\n{judge(stage)}"
        except Exception:  # noqa: BLE001 - a bug, there or here
            wrong = traceback.format_exc()
        counts: Counter[str] = Counter(stage.faults.counts)
        counts["steps"] = stage.steps
        counts["transactions"] = stage.session.transactions
        counts["runs"] = 1
        counts["processes"] = len(stage.environments)
        story = [f"{at:12.6f}  {what}" for at, what in stage.story]
        lines = _trace(stage) if trace else []
        return Result(seed, wrong, counts, stage.recoveries, story, lines)
    finally:
        with warnings.catch_warnings():  # coroutines that a dead process had no time to start
            warnings.simplefilter("ignore", RuntimeWarning)
            stage.close()
            del stage
            log.setLevel(logging.NOTSET)
            gc.enable()
            # A finalizer may revive the objects around a greenlet: they go in the next round. The
            # next run would freeze the rest for ever.
            while gc.collect():
                pass


def _trace(stage: Stage) -> list[str]:
    """Every moment of every process. (Names of workers hold the id of the machine's process.)"""
    lines = [
        (line.mono, f"{line.mono:.6f} {environment.process}: {line}")
        for environment in stage.environments
        for line in environment.log.lines
    ]
    return [text.replace(f"-{os.getpid()}-", "-") for _, text in sorted(lines)]
