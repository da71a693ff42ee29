"""python -m bench.kills [NAME ...] [--kills N] [--seed N] [--out FILE]

Two worker processes of each queue work on jobs of 100 ms, ten at a time each. Again and again one
of them, by chance, is killed with SIGKILL and started anew, as a supervisor would. Then everybody
gets time to recover. Counted, by a ledger that no queue knows of:

    lost         the job had no effect, and its queue has nothing left to do
    stuck        the job had no effect, and its queue still calls it unfinished when time is up
    repeated     the job had its effect more than once
    recovery     from the kill until a job that was cut off had its effect, in seconds
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.harness import BenchmarkFailed, check
from bench.kills.ledger import Ledger
from bench.lab import Lab
from bench.peers.catalogue import load
from bench.peers.contest import say
from bench.peers.environments import ROOT, PeerUnavailable, python_for
from bench.peers.trial import Trial, trial

NAMES = (
    "tenure-postgres", "tenure-sqlite", "procrastinate", "procrastinate-recipe", "pgqueuer", "dbos",
    "huey",
)  # fmt: skip
WORKERS = 2
SLOTS = 10
HOLD_SECONDS = 0.1
PAUSE_SECONDS = (0.5, 1.5)
"""Between kills, after the worker is back."""
START_SECONDS = 60.0
PATIENCE_SECONDS = 150.0
"""So long after the last kill nobody expects anything more: five leases of thirty seconds."""
GRACE_SECONDS = 3.0
"""A queue that forgets jobs before they run has some in its handlers when it has nothing left."""
LOOK_SECONDS = 0.05


class Toll(msgspec.Struct, frozen=True):
    """What the kills cost one queue."""

    name: str
    settings: str
    jobs: int
    kills: int
    cut_off: int
    """Jobs that were killed in their handler."""
    lost: int
    stuck: int
    repeated: int
    recoveries: list[float]
    seconds_to_the_last: float | None
    """From the last kill until every job had its effect; None: that did not come."""

    def row(self) -> str:
        """A row of the table."""
        times = sorted(self.recoveries)
        median = f"{statistics.median(times):.1f}" if times else "-"
        longest = f"{times[-1]:.1f}" if times else "-"
        last = (
            f"{self.seconds_to_the_last:.1f}" if self.seconds_to_the_last is not None else "never"
        )
        return (
            f"| {self.name} | {self.jobs:,} | {self.kills} | {self.cut_off} | {self.lost} "
            f"| {self.stuck} | {self.repeated} | {median} / {longest} | {last} |"
        )


HEAD = (
    "| queue | jobs | kills | cut off | lost | stuck | repeated | recovery, median / longest, s "
    "| all done after, s |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|"
)


class Crew:
    """The worker processes of a trial."""

    def __init__(self, one: Trial) -> None:
        self._trial = one
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, worker: int) -> None:
        """Start one, or start it again."""
        self._processes[worker] = subprocess.Popen(
            self._trial.command("work_slowly", worker, SLOTS, HOLD_SECONDS),
            stdin=subprocess.DEVNULL, stdout=self._trial.log, stderr=self._trial.log,
            start_new_session=True, cwd=ROOT, env=self._trial.environment(),
        )  # fmt: skip

    def kill(self, worker: int) -> float:
        """SIGKILL it and its children. Answers when it was dead."""
        process = self._processes[worker]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return time.monotonic()

    def close(self) -> None:
        """Nobody stays behind."""
        for worker, process in self._processes.items():
            if process.poll() is None:
                self.kill(worker)


def toll(lab: Lab, name: str, *, kills: int, seed: int) -> Toll:
    """Let one queue suffer."""
    adapter = load(name)
    python = python_for(adapter, say)
    jobs = int((kills + 2) * PAUSE_SECONDS[1] / HOLD_SECONDS) * SLOTS * WORKERS
    with trial(lab, adapter, python, jobs=jobs) as one:
        ledger = Ledger(one.board.path, jobs)
        one.enqueue_many(0, jobs)
        one.check_stored(jobs)
        crew = Crew(one)
        try:
            cut_off, last_kill = _kill(crew, ledger, random.Random(seed), kills)
            done_at = _wait(one, ledger, last_kill + PATIENCE_SECONDS)
        finally:
            crew.close()
        missing = ledger.without_effect()
        unfinished = bool(one.place.number(adapter.unfinished))
        waits = [ledger.ended_at(job) - at for job, at in cut_off.items() if job not in missing]
        return Toll(
            name, adapter.settings, jobs, kills, len(cut_off),
            0 if unfinished else len(missing), len(missing) if unfinished else 0,
            ledger.repeated(), waits, None if done_at is None else done_at - last_kill,
        )  # fmt: skip


def _kill(
    crew: Crew, ledger: Ledger, chance: random.Random, kills: int
) -> tuple[dict[int, float], float]:
    """Kill workers by chance. Answers when each job that was cut off was, and the last kill."""
    for worker in range(WORKERS):
        crew.start(worker)
    _wait_for_workers(ledger)
    ledger.go()
    cut_off: dict[int, float] = {}
    died_at = time.monotonic()
    for number in range(kills):
        time.sleep(chance.uniform(*PAUSE_SECONDS))
        worker = chance.randrange(WORKERS)
        died_at = crew.kill(worker)
        cut_off |= dict.fromkeys(ledger.in_hands_of(worker), died_at)
        say(f"kill {number + 1}: worker {worker}, {len(ledger.without_effect()):,} jobs to go")
        ledger.gone(worker)
        crew.start(worker)
        _wait_for_workers(ledger)
    return cut_off, died_at


def _wait_for_workers(ledger: Ledger) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ledger.is_ready(WORKERS):
        check(time.monotonic() < deadline, "a worker did not start")
        time.sleep(LOOK_SECONDS)


def _wait(one: Trial, ledger: Ledger, deadline: float) -> float | None:
    """Until every job has had its effect, or the queue has nothing left to do, or time is up."""
    while time.monotonic() < deadline:
        missing = ledger.without_effect()
        if not missing:
            return time.monotonic()
        if not one.place.number(one.adapter.unfinished):
            time.sleep(GRACE_SECONDS)
            if ledger.without_effect() == missing:
                return None
        time.sleep(LOOK_SECONDS)
    return None


def main(arguments: Sequence[str]) -> int:
    """Let all of them suffer."""
    parser = argparse.ArgumentParser(prog="python -m bench.kills", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"there is no queue {min(unknown)!r}; known are {', '.join(NAMES)}")
    lines = [HEAD]
    with Lab(quick=False) as lab:
        for name in options.names or NAMES:
            say(name)
            try:
                lines.append(toll(lab, name, kills=options.kills, seed=options.seed).row())
            except (PeerUnavailable, BenchmarkFailed) as error:
                lines.append(f"| {name} | {str(error).splitlines()[0]} |")
            say(lines[-1])
    table = "\n".join(lines)
    print(table)
    if options.out is not None:
        options.out.write_text(table + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
