"""Jobs that use more than the happy path, against plain ones, through one worker process.

A hundred queues; all 201 priorities; one job in a hundred that fails at first and is retried at
once; a unique key each; arguments of 1 and of 10 kB instead of 100 bytes. `unique_enqueue` compares
the bulk enqueue of jobs with and without keys.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

from bench.harness import Result
from bench.lab import Lab
from bench.work import ARGS, PAYLOAD, check_rows
from bench.workloads.crew import DEFAULT, crew
from bench.workloads.handlers import FLAKY, NOOP
from bench.workloads.place import KINDS, Kind, fresh_place, plain
from bench.workloads.turns import compare_sides, take_turns
from tenure import Fixed, Unique
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.rules.limits import MAX_PRIORITY, MIN_PRIORITY
from tenure.rules.retry import dump_policy

PLAIN = "plain"
DRAINS = ("queues100", "priorities", "retries", "unique", "payload1k", "payload10k")
FIGURES = (*DRAINS, "unique_enqueue")
NAMES = tuple(f"workloads.{store}.{figure}" for store in KINDS for figure in FIGURES)
JOBS = 40_000
RETRY_EVERY = 100
BYTES = {"payload1k": 1_000, "payload10k": 10_000}
QUEUES = tuple(f"queue-{number}" for number in range(100))
AT_ONCE = dump_policy(Fixed(0.0))


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    for store in KINDS:
        yield from _drains(lab, store)
        name = f"workloads.{store}.unique_enqueue"
        if lab.wants(name):
            yield _enqueue(lab, store, name)


def _drains(lab: Lab, store: Kind) -> Iterator[Result]:
    wanted = [each for each in DRAINS if lab.wants(f"workloads.{store}.{each}")]
    if not wanted:
        return
    jobs = lab.few(JOBS)
    sides = {each: partial(drain_variety, lab, store, each, jobs) for each in (PLAIN, *wanted)}
    rounds = take_turns(lab, sides)
    for each in wanted:
        name = f"workloads.{store}.{each}"
        yield compare_sides(name, rounds, each, PLAIN, unit="jobs/s", against="plain jobs")


def drain_variety(lab: Lab, store: Kind, what: str, jobs: int) -> float:
    """Jobs per second of one worker on a fresh database."""
    queues = QUEUES if what == "queues100" else DEFAULT
    retried = len(range(0, jobs, RETRY_EVERY)) if what == "retries" else 0
    with fresh_place(lab, store) as place, crew(place, queues=queues) as team:
        return team.drain(_jobs(what, jobs), events=retried)


def _jobs(what: str, jobs: int) -> Sequence[NewJob]:
    priorities = range(MIN_PRIORITY, MAX_PRIORITY + 1)
    match what:
        case "queues100":
            return [_job(queue=QUEUES[n % len(QUEUES)]) for n in range(jobs)]
        case "priorities":
            return [_job(priority=priorities[n % len(priorities)]) for n in range(jobs)]
        case "retries":
            return [_job(task=NOOP if n % RETRY_EVERY else FLAKY) for n in range(jobs)]
        case "unique":
            return [_job(unique=Unique(key=f"order-{n}")) for n in range(jobs)]
        case "payload1k" | "payload10k":
            args = encode(ARGS | {"to": "x" * BYTES[what]})
            return [NewJob(task=NOOP, args=args) for _ in range(jobs)]
        case _:
            return list(plain(jobs))


def _job(
    *, task: str = NOOP, queue: str = "default", priority: int = 0, unique: Unique | None = None
) -> NewJob:
    retry = AT_ONCE if task == FLAKY else None
    return NewJob(
        task=task, args=PAYLOAD, queue=queue, priority=priority, unique=unique, retry=retry
    )


def _enqueue(lab: Lab, store: Kind, name: str) -> Result:
    jobs = lab.few(JOBS)

    def rate(what: str) -> float:
        new = _jobs(what, jobs)
        with fresh_place(lab, store) as place:
            start = time.perf_counter()
            place.fill(new)
            seconds = time.perf_counter() - start
            check_rows(place.count, job=jobs, unique_key=jobs if what == "unique" else 0)
        return jobs / seconds

    rounds = take_turns(lab, {what: partial(rate, what) for what in (PLAIN, "unique")})
    return compare_sides(name, rounds, "unique", PLAIN, unit="jobs/s", against="plain jobs")
