"""Some thousand jobs, two worker processes, and what goes wrong on an ordinary day.

    python -m examples.demo

The jobs of examples/shop.py are stored in a SQLite file. Some fail and are tried again. One kills
the process that runs it. One is long, and its worker is killed in the middle. At the end the
database is asked what became of every job.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from examples.shop import Order, app, charge, confirm, confirmation, print_label, report
from tenure import Handle, Job, State
from tenure.codec import decode

ORDERS = 1500
MONTHS = 12
STOP_SECONDS = 30.0


def main() -> int:
    """Run the demo; 0 when every job is accounted for."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A flag, because an exception could come between the start of the workers and our note of it.
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        with tempfile.TemporaryDirectory(prefix="tenure-demo-") as folder:
            os.environ["TENURE_URL"] = f"sqlite:///{Path(folder, 'jobs.db')}"
            with app:
                jobs = enqueue(ORDERS)
                say(f"{len(jobs)} jobs enqueued in {app.url}")
                work(jobs, stop)
                return audit(jobs)
    except KeyboardInterrupt:
        say("interrupted; the workers are gone, and so is the file")
        return 130


def enqueue(orders: int) -> list[Handle[Any]]:
    """Two jobs for each order, a label for one of them, and a report: all in one transaction."""
    calls: list[Any] = [report.call(MONTHS)]
    for number in range(1, orders + 1):
        order = Order(number, cents=100 * number)
        calls += [confirm.call(order), charge.call(order)]
    calls.append(print_label.call(Order(1, cents=100)))
    return app.enqueue_many(calls)


def work(jobs: list[Handle[Any]], stop: threading.Event) -> None:
    """Keep two worker processes at work until all jobs are done, and kill one of them halfway."""
    # In a session of its own, so that Ctrl-C is for us alone, and we end the workers in good order.
    crew = subprocess.Popen([sys.executable, "-m", "examples.shop"], start_new_session=True)
    is_one_killed = False
    try:
        while left := sum(count.jobs for count in app.count_live()):
            if sys.stdout.isatty():
                print(f"\r{len(jobs) - left} of {len(jobs)} jobs finished", end="", flush=True)
            if not is_one_killed:
                is_one_killed = kill_the_worker_of(jobs[0].id)
            if stop.wait(0.1):
                raise KeyboardInterrupt
            if crew.poll() is not None:
                raise SystemExit(f"the workers have ended with {crew.returncode}")
    finally:
        crew.send_signal(signal.SIGINT)  # they finish what they run
        crew.wait(STOP_SECONDS)


def kill_the_worker_of(id: int) -> bool:
    """Kill the process that runs this job, once the job has come halfway."""
    job, progress = app.get(id), app.progress(id)
    if job.state is not State.RUNNING or (progress.fraction or 0.0) < 0.5:
        return False
    for worker in app.workers():
        if worker.name == job.worker:
            say(f"killing {worker.name}, which runs the report ({progress.message})")
            os.kill(worker.pid, signal.SIGKILL)
            return True
    return False


def audit(jobs: list[Handle[Any]]) -> int:
    """Ask the database what became of every job, and compare it with what was enqueued."""
    found = list(all_jobs())
    wrong = [job for job in found if not is_as_expected(job)]
    say(f"{len(found)} jobs in the database: {dict(Counter(str(job.state) for job in found))}")
    say(f"{sum(job.attempts > 1 for job in found)} needed more than one attempt")
    say(f"{sum(job.crashes > 0 for job in found)} were in the hands of the worker that was killed")
    for name, handle in ("report", jobs[0]), ("label", jobs[-1]):
        say(f"the story of the {name}:")
        for event in app.timeline(handle.id):
            say(f"    token {event.token}  {event.kind:<10}  {event.worker or ''}")
    is_complete = sorted(job.id for job in found) == sorted(handle.id for handle in jobs)
    if wrong or not is_complete:
        say(f"NOT every job is accounted for, such as {wrong[:3]}")
        return 1
    say("every job is accounted for: it succeeded with its own result, or is the broken label")
    return 0


def is_as_expected(job: Job) -> bool:
    """The label has failed; everything else has succeeded with its own result."""
    if job.task == print_label.name:
        return job.state is State.FAILED
    result = decode(job.result or "null")
    if job.task == report.name:
        return isinstance(result, list) and len(result) == MONTHS
    order = decode(job.args, dict[str, Order])["order"]
    return result == (order.cents if job.task == charge.name else confirmation(order))


def all_jobs() -> Iterator[Job]:
    """Every job, a page at a time, newest first."""
    page = app.list_jobs(limit=1000)
    yield from page.jobs
    while page.next is not None:
        page = app.list_jobs(limit=1000, before=page.next)
        yield from page.jobs


def say(line: str) -> None:
    """One line, in place of the progress on a terminal."""
    print(f"\r\033[K{line}" if sys.stdout.isatty() else line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
