"""Some thousand jobs, two workers, and everything that goes wrong on an ordinary day.

    python -m examples.drain

Jobs are stored in a SQLite file and drained by two worker processes, which use nothing but the
store. Some jobs fail and are tried again. One kills every worker that runs it. One worker is killed
from outside. At the end the database is asked what became of every job.
"""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import random

from tenure.codec import decode, encode, encode_error
from tenure.job import Claimed, Job, Lease, NewJob, State
from tenure.lifecycle import Settlement, retry, succeed
from tenure.policy import Exponential, delay_seconds, dump_policy, load_policy
from tenure.store import Store, open_store

JOBS = 3000
WORKERS = 2
BLOCK = 50
LEASE_SECONDS = 2.0
BEAT_SECONDS = 0.5
SOON = dump_policy(Exponential(base_seconds=0.2, cap_seconds=1.0))


# The worker: claim a block of jobs, run them, settle them.


def work(url: str, boss: int) -> None:
    """Serve the queue until nothing is left in it, or until nobody waits for us any more."""
    worker = f"worker-{os.getpid()}-{secrets.token_hex(4)}"  # a new name at every start
    with open_store(url) as store:
        while os.getppid() == boss:
            store.promote()  # retries whose time has come stand in line again
            store.sweep()  # jobs of workers that died stand in line again
            leases = store.claim(worker, {"default": BLOCK}, lease_seconds=LEASE_SECONDS)
            held = {lease.id: lease for lease in leases}
            while held:
                run_first(store, worker, held)
            if not leases:
                if not store.count_live():
                    return
                time.sleep(0.02)


def run_first(store: Store, worker: str, held: dict[int, Lease]) -> None:
    """Run the jobs of the first lease and settle them, with heartbeats for all leases meanwhile.

    A heartbeat tells the store which jobs have started, and the worker which leases it has lost.
    """
    lease = next(iter(held.values()))
    settlements: list[Settlement] = []
    beat_at = time.monotonic() + BEAT_SECONDS
    for position, job in enumerate(lease.jobs):
        if time.monotonic() >= beat_at:
            started = [job.id for job in lease.jobs[: position + 1]]
            told = {id: started if id == lease.id else [] for id in held}
            for lost in store.extend(worker, told, lease_seconds=LEASE_SECONDS).lost:
                del held[lost]
            if lease.id not in held:
                return  # these jobs are somebody else's now; the store would refuse our results
            beat_at = time.monotonic() + BEAT_SECONDS
        settlements.append(attempt(job))
    del held[lease.id]
    answers = store.settle(worker, settlements, done_leases=[lease.id])
    if stale := sum(answer.stale for answer in answers):
        say(f"{worker} came too late with {stale} results; the store refused them")


def attempt(job: Claimed) -> Settlement:
    """Run one job, and turn what happened into a settlement."""
    start = time.monotonic()
    try:
        result = handle(job)
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is its outcome
        wait = delay_seconds(load_policy(job.retry), job.attempts, random)
        return retry(job, encode_error(error), wait, duration_seconds=time.monotonic() - start)
    return succeed(job, encode(result), time.monotonic() - start)


def handle(job: Claimed) -> int:
    """What the three tasks do."""
    time.sleep(0.003)
    if job.task == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.task == "flaky" and job.attempts == 0:
        raise ConnectionError("the other side hung up")
    return squared(job)


def squared(job: Claimed | Job) -> int:
    return decode(job.args, dict[str, int])["number"] ** 2


# The boss: enqueue, keep the workers alive, and look at the books.


def main() -> int:
    """Run the example; 0 when every job is accounted for."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A flag, because an exception could come between the start of a worker and our note of it.
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        with tempfile.TemporaryDirectory(prefix="tenure-drain-") as folder:
            url = f"sqlite:///{Path(folder, 'jobs.db')}"
            with open_store(url, give_up_seconds=60.0) as store:
                ids = [added.id for added in store.enqueue([new_job(n) for n in range(JOBS)])]
                say(f"{len(ids)} jobs enqueued in {url}")
                drain(store, url, stop)
                return audit(store, ids)
    except KeyboardInterrupt:
        say("interrupted; the workers are gone, and so is the file")
        return 130


def new_job(number: int) -> NewJob:
    """Mostly honest work; some of it flaky, and one job that kills whoever runs it."""
    args = encode({"number": number})
    if number == 110:
        return NewJob(task="poison", args=args, max_attempts=2)
    task = "flaky" if number % 20 == 0 else "square"
    return NewJob(task=task, args=args, max_attempts=20, retry=SOON)


def drain(store: Store, url: str, stop: threading.Event) -> None:
    """Keep the workers running until all jobs are done, and kill one of them halfway."""
    # In sessions of their own, so that Ctrl-C is for the boss alone.
    command = [sys.executable, "-m", "examples.drain", url, str(os.getpid())]
    workers: list[subprocess.Popen[bytes]] = []
    is_one_killed = False
    try:
        while left := sum(count.jobs for count in store.count_live()):
            if sys.stdout.isatty():
                print(f"\r{JOBS - left} of {JOBS} jobs finished", end="", flush=True)
            for dead in [process for process in workers if process.poll()]:
                say(f"worker {dead.pid} died ({dead.returncode}); starting another")
                workers.remove(dead)
            while len(workers) < WORKERS:
                workers.append(subprocess.Popen(command, start_new_session=True))
            if left < JOBS / 2 and not is_one_killed:
                say(f"killing worker {workers[0].pid} with {left} jobs to go")
                workers[0].kill()
                is_one_killed = True
            if stop.wait(0.1):
                raise KeyboardInterrupt
    finally:
        for process in workers:
            process.kill()
            process.wait()


def audit(store: Store, ids: list[int]) -> int:
    """Ask the database what became of every job, and compare it with what was enqueued."""
    jobs = list(all_jobs(store))
    [poison] = [job for job in jobs if job.task == "poison"]
    wrong = [job for job in jobs if job is not poison
             and (job.state is not State.SUCCEEDED or job.result != str(squared(job)))]  # fmt: skip
    counts = Counter(str(job.state) for job in jobs)
    say(f"{len(jobs)} jobs in the database: {dict(counts)}")
    say(f"{sum(job.attempts > 1 for job in jobs)} needed more than one attempt")
    say(f"{sum(job.crashes > 0 for job in jobs)} were in the hands of a worker that died")
    say("the story of the poison job:")
    for event in store.timeline(poison.id):
        say(f"    token {event.token}  {event.kind:<9}  {event.worker or ''}")
    is_complete = sorted(job.id for job in jobs) == sorted(ids)  # every one, and no stranger
    if wrong or not is_complete or poison.state is not State.FAILED:
        say(f"NOT every job is accounted for, such as {wrong[:3]}")
        return 1
    say("every job is accounted for: it succeeded with its own result, or is the poison job")
    return 0


def all_jobs(store: Store) -> Iterator[Job]:
    """Every job, a page at a time, newest first."""
    page = store.list_jobs(limit=1000)
    yield from page.jobs
    while page.next is not None:
        page = store.list_jobs(limit=1000, before=page.next)
        yield from page.jobs


def say(line: str) -> None:
    """One line, in place of the progress on a terminal."""
    print(f"\r\033[K{line}" if sys.stdout.isatty() else line, flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        work(sys.argv[1], int(sys.argv[2]))
    else:
        sys.exit(main())
