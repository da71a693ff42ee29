"""A worker in a process of its own: `station.py [PROCESSES [DRAIN_SECONDS]]`, on TENURE_URL."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress

from tenure import Fixed, Running, Tenure
from tenure.worker.settings import Settings

app = Tenure()
FAST: Settings = {
    "lease_seconds": 1.0,
    "heartbeat_seconds": 0.1,
    "sweep_seconds": 0.1,
    "promote_seconds": 0.05,
    "idle_poll_seconds": 0.05,
    "kill_seconds": 0.5,
}


def say(words: str) -> None:
    os.write(1, f"{words}\n".encode())


@app.task(max_attempts=2)
def quick() -> int:
    return os.getpid()


@app.task(max_attempts=3, retry=Fixed(0.01))
def segfault() -> None:
    say("segfault")
    ctypes.string_at(0)


@app.task(max_attempts=3, retry=Fixed(0.01))
async def exit_now() -> None:
    say("exit_now")
    os._exit(1)


@app.task(max_attempts=3, retry=Fixed(0.01))
async def killed() -> None:
    """What the system does to a process that uses up the memory."""
    say("killed")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(at_most_once=True, max_attempts=5)
def charge(job: Running) -> None:
    say(f"charged {job.id}")
    time.sleep(600)


@app.task(at_most_once=True, max_attempts=5)
async def charge_async(job: Running) -> None:
    say(f"charged {job.id}")
    await asyncio.sleep(600)


@app.task()
def slow(job: Running, seconds: float) -> int:
    say(f"slow {job.id} attempt {job.attempt}")
    time.sleep(seconds)
    say(f"slow {job.id} done")
    return os.getpid()


@app.task()
async def slow_async(job: Running, seconds: float) -> int:
    say(f"slow {job.id} attempt {job.attempt}")
    await asyncio.sleep(seconds)
    say(f"slow {job.id} done")
    return os.getpid()


@app.task()
async def held_async(job: Running, gate: str) -> None:
    """Until the test makes this file."""
    say(f"held {job.id} attempt {job.attempt}")
    while not os.path.exists(gate):  # noqa: ASYNC110, ASYNC240, PTH110 - another process makes it
        await asyncio.sleep(0.05)


@app.task(isolation="process")
def slow_child(job: Running, seconds: float) -> int:
    say(f"slow {job.id} attempt {job.attempt}")
    time.sleep(seconds)
    say(f"slow {job.id} done")
    return os.getpid()


@app.task(isolation="process")
def busy_child() -> None:
    say(f"busy child {os.getpid()}")
    while True:
        pass


@app.task()
async def deaf() -> None:
    say("deaf")
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(600)


@app.task()
def deaf_thread() -> None:
    say("deaf")
    threading.Event().wait()


@app.task()
async def deaf_executor() -> None:
    """In the threads of the event loop, all of them."""
    calls = [asyncio.to_thread(threading.Event().wait) for _ in range(50)]
    asyncio.get_running_loop().call_soon(say, "deaf")
    await asyncio.gather(*calls)


@app.task(max_attempts=1)
async def subtask_exits() -> None:
    async def exits() -> None:
        raise SystemExit(5)

    await asyncio.create_task(exits())


@app.task(max_attempts=2, retry=Fixed(0.01))
async def stops_loop() -> None:
    say("stops_loop")
    asyncio.get_running_loop().stop()
    await asyncio.sleep(600)


@app.task(max_attempts=2, retry=Fixed(0.01))
async def closes_loop() -> None:
    say("closes_loop")
    asyncio.get_running_loop().close()


@app.task(max_attempts=2, retry=Fixed(0.01))
async def cancels_all() -> None:
    """Handlers first, itself included; then the tasks of the worker."""
    say("cancels_all")
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name().startswith("tenure")):
        task.cancel()


@app.task()
async def replaces_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say("replaced")


@app.task(max_attempts=1)
async def forks() -> int:
    """Its fork goes on with the event loop, as if it were the worker."""
    pid = os.fork()
    if pid == 0:
        await asyncio.sleep(5)
    return pid


@app.task(max_attempts=1)
def forks_in_thread() -> int:
    return os.fork()


def main() -> None:
    nohup = os.environ.get("TENURE_TEST_NOHUP")
    signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    processes, drain_seconds = [*sys.argv[1:], *("1", "5")[len(sys.argv) - 1 :]]
    app.run_worker(
        processes=int(processes), **(FAST | Settings(drain_seconds=float(drain_seconds)))
    )
    say("returned")


if __name__ == "__main__":
    main()
