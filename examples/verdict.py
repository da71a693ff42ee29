"""Is every job of the demo accounted for?

Two accounts must agree. The demo keeps the first: the jobs that it enqueued and the workers that
died. The second is the database: each job with its result and its history. Then the history checker
checks every operation that every process has recorded against the invariants.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from examples.backfill import embed, publish, summarise
from tenure import Job, State, Tenure
from tests.support.books import Books, Expected
from tests.support.history import NEVER
from tests.support.invariants import check

DATABASE, RECORDS, SCRIPT = "jobs.db", "records", "script.json"
SHOWN = 5
"""The maximum number of examples per problem."""


class Script(msgspec.Struct, frozen=True):
    """The account of the demo: the ids of its jobs, the shelves, the processes that died."""

    jobs: list[int]
    chapters: int
    shelves: int
    killed: list[int]

    def save(self, folder: Path) -> None:
        """Write it next to the database."""
        (folder / SCRIPT).write_bytes(msgspec.json.encode(self))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result, in lines to print."""

    is_good: bool
    lines: tuple[str, ...]


def judge(folder: Path) -> Verdict:
    """Compare all accounts in this folder. Good only if no job is missing, unfinished or wrong."""
    script = msgspec.json.decode((folder / SCRIPT).read_bytes(), type=Script)
    url = f"sqlite:///{folder / DATABASE}"
    with Tenure(url) as app:
        found = list(all_jobs(app))
    wrong = list(wrong_jobs(found, script))
    if sys.flags.optimize:
        wrong.append("the history checker uses assert: run Python without -O")
    try:
        books = check(folder / RECORDS, url, Expected(disturbed=script.killed))
    except AssertionError as error:
        wrong += [f"the history checker: {line}" for line in str(error).splitlines()[:SHOWN]]
    else:
        wrong += wrong_story(books, script)
        if not wrong:
            return Verdict(True, summary(found, books, script))
    return Verdict(False, ("NOT every job is accounted for", *(f"  {line}" for line in wrong)))


def wrong_jobs(found: list[Job], script: Script) -> Iterator[str]:
    """Jobs whose rows are not as expected."""
    times = Counter(job.id for job in found)
    for id, count in (times - Counter(script.jobs)).items():
        yield f"job {id} exists {count} times more than it was enqueued"
    missing = sorted(Counter(script.jobs) - times)
    if missing:
        yield f"{len(missing)} jobs are missing, such as {missing[:SHOWN]}"
    bad = [job for job in found if not is_as_expected(job, script)]
    for job in bad[:SHOWN]:
        yield f"job {job.id}, {job.task}, is {job.state} with the result {job.result!r:.60}"
    if len(bad) > SHOWN:
        yield f"and {len(bad) - SHOWN} more like these"


def is_as_expected(job: Job, script: Script) -> bool:
    """Has it succeeded, with the result of its own arguments?"""
    if job.state is not State.SUCCEEDED:
        return False
    result, args = job.result, job.args
    if job.task == summarise.name:  # each chapter once, by one attempt after the other
        return (
            isinstance(result, list)
            and len(result) == script.chapters
            and result == sorted(result)
            and result[-1] <= job.token
        )
    if job.task == publish.name:
        return bool(result == f"shelf {args['shelf']}")
    return job.task == embed.name and bool(result == args["page"] ** 2)


def wrong_story(books: Books, script: Script) -> Iterator[str]:
    """Jobs whose history is not as expected."""
    replayed = jobs_with(books, "replayed")
    if len(replayed) != script.shelves:
        yield f"{len(replayed)} jobs were replayed, not {script.shelves}"
    if forgotten := running_when_killed(books, script) - jobs_with(books, "crashed"):
        yield f"running in a killed worker and never recovered: {sorted(forgotten)[:SHOWN]}"


def summary(found: list[Job], books: Books, script: Script) -> tuple[str, ...]:
    """The figures, from the rows and the records."""
    left = sum(job.finished_at is None for job in found)
    succeeded = sum(job.state is State.SUCCEEDED for job in found)
    missing = len(set(script.jobs) - {job.id for job in found})
    held, running = jobs_with(books, "crashed"), running_when_killed(books, script)
    results = [job.result for job in found if job.task == summarise.name]
    went_on = sum(isinstance(result, list) and len(set(result)) > 1 for result in results)
    retried, replayed = jobs_with(books, "retried"), jobs_with(books, "replayed")
    workers = counted(len(script.killed), "worker")
    processes = len({call.pid for call in books.records.calls})
    calls, runs = len(books.records.calls), len(books.records.runs)
    return (
        "every job is accounted for",
        (
            f"  jobs          {len(script.jobs):,} enqueued, {succeeded:,} succeeded, "
            f"{left} left, {missing} missing"
        ),
        f"  errors        {len(retried):,} jobs failed and were retried",
        f"  dead letters  {len(replayed):,}, replayed after the fix",
        (
            f"  SIGKILL       {workers} killed with {counted(len(held), 'job')}, "
            f"{len(running):,} of them running; all recovered"
        ),
        f"  long jobs     {went_on} of {len(results)} resumed from a checkpoint in another worker",
        (
            f"  checked       {calls:,} operations and {runs:,} runs of {processes} processes: "
            "no errors"
        ),
    )


def counted(number: int, what: str) -> str:
    """A number with its noun, such as `3 jobs`."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def jobs_with(books: Books, kind: str) -> set[int]:
    """The jobs that have an event of this kind."""
    return {event.id for event in books.final.events if event.kind == kind}


def running_when_killed(books: Books, script: Script) -> set[int]:
    """The jobs whose handler had started in a process that died, and had not returned."""
    return {run.id for run in books.records.runs if run.pid in script.killed and run.ended == NEVER}


def all_jobs(app: Tenure) -> Iterator[Job]:
    """Every job, a page at a time, newest first."""
    page = app.list_jobs(limit=1000)
    yield from page.jobs
    while page.next is not None:
        page = app.list_jobs(limit=1000, after=page.next)
        yield from page.jobs
