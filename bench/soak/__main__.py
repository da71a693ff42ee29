"""python -m bench.soak [--store postgres|sqlite] [--minutes N] [--out DIR]

Measures how many jobs a second a producer and a worker get through together, then feeds half as
many, one in a hundred of which fails at first, and removes finished jobs after a minute. Looks
every few seconds at memory, threads, file descriptors, connections, write-ahead log, dead rows and
backlog. Where others use the machine and a backlog grows, the producer waits for the worker.
Exit status 1: something grew.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench import plots, work
from bench.lab import Lab
from bench.soak.watch import BOUNDS, Sample, Watch, highest, is_bounded
from bench.workloads.crew import Crew, crew
from bench.workloads.handlers import FLAKY, NOOP
from bench.workloads.place import KINDS, Kind, Place, fresh_place, plain
from tenure.rules.job import NewJob

PEAK_JOBS = 40_000
TICK_SECONDS = 0.1
LOOK_SECONDS = 5.0
PRUNE_SECONDS = 15.0
KEEP_SECONDS = 60.0
FLAKY_SHARE = 100
BEHIND_SECONDS = 3.0
"""A backlog of so many seconds: the machine has less to give than when the peak was measured."""


def soak(lab: Lab, kind: Kind, seconds: float) -> tuple[float, list[Sample]]:
    """Run. Answers the peak in jobs per second, and what was seen."""
    with fresh_place(lab, kind) as place, crew(place) as team:
        peak = _peak(place, team)
        say(f"{kind}: peak {peak:,.0f} jobs/s; half of it for {seconds / 60:.1f} minutes")
        return peak, _feed(place, team, peak / 2, seconds)


def _peak(place: Place, team: Crew) -> float:
    start = time.perf_counter()
    team.wait_until_settled(place.fill(plain(PEAK_JOBS)))
    return PEAK_JOBS / (time.perf_counter() - start)


def _feed(place: Place, team: Crew, rate: float, seconds: float) -> list[Sample]:
    watch, samples = Watch(place, team.family), list[Sample]()
    start = time.monotonic()
    sent, backlog, looked, pruned = 0, 0, start, start
    batch = int(rate * TICK_SECONDS)
    while (now := time.monotonic()) - start < seconds:
        behind = backlog > rate * BEHIND_SECONDS
        if not behind:
            place.store.enqueue([_job(number) for number in range(sent, sent + batch)])
            sent += batch
        if now - pruned > PRUNE_SECONDS:
            pruned = now
            place.store.prune(succeeded_seconds=KEEP_SECONDS, other_seconds=KEEP_SECONDS)
        if behind or now - looked > LOOK_SECONDS:
            backlog = place.number("select count(*) from {t}job")
        if now - looked > LOOK_SECONDS:
            looked = now
            samples.append(watch.look(now - start, sent - backlog, backlog))
            say(str(samples[-1]))
        time.sleep(max(0.0, TICK_SECONDS - (time.monotonic() - now)))
    return samples


def _job(number: int) -> NewJob:
    return NewJob(task=NOOP if number % FLAKY_SHARE else FLAKY, args=work.PAYLOAD)


def report(kind: Kind, peak: float, samples: Sequence[Sample], folder: Path | None) -> bool:
    """Say what was seen, and draw it. Answers whether everything stayed bounded."""
    first, last = samples[0], samples[-1]
    rate = (last.finished - first.finished) / (last.seconds - first.seconds)
    print(f"\n## {kind}: {last.finished:,} jobs in {last.seconds:,.0f} s\n")
    print(f"Peak, measured first: {peak:,.0f} jobs a second. Offered, half of it: {peak / 2:,.0f}. "
          f"Done: {rate:,.0f}.\n")  # fmt: skip
    print("| figure | highest of the first third | of the second | of the last | bounded |")
    print("|---|--:|--:|--:|---|")
    good = True
    for bound in BOUNDS[kind]:
        one, two, three = highest(samples, bound)
        bounded = is_bounded(samples, bound)
        good = good and bounded
        print(f"| {bound.figure} ({bound.unit}) | {one:,.0f} | {two:,.0f} | {three:,.0f} "
              f"| {'yes' if bounded else 'NO'} |")  # fmt: skip
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{kind}.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, samples)))
        for bound in BOUNDS[kind]:
            curve = plots.Line(bound.figure, [float(getattr(s, bound.figure)) for s in samples])
            title = f"{kind}: {bound.figure}, {bound.unit}, over {last.seconds / 60:.0f} minutes"
            (folder / f"{kind}-{bound.figure}.svg").write_text(plots.lines(title, [curve]))
    return good


def say(words: str) -> None:
    """Progress."""
    print(f"# {words}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Soak each store in turn."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--store", choices=KINDS, help="only this one")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--out", type=Path, help="a folder for samples and pictures")
    options = parser.parse_args(arguments)
    good = True
    for kind in [options.store] if options.store else KINDS:
        with Lab(quick=False) as lab:
            peak, samples = soak(lab, kind, options.minutes * 60)
        good = report(kind, peak, samples, options.out) and good
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
