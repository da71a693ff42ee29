"""Run the test suite part by part and say how long each part took.

`python scripts/test.py` runs every part; names as arguments choose parts. Two parts run at a time:
while one waits for processes that it has killed, the other one works. The output of a part comes
when it has ended; that of a single part comes at once. All parts run even when one fails. The exit
status is 0 only if every part passed, and the whole took at most 25 minutes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Timer

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 25 * 60
LANES = 2
NO_TESTS_COLLECTED = 5
COUNT = re.compile(r"(\d+) (passed|failed|skipped|xfailed|xpassed|errors?)\b")
CLOSING_LINE = re.compile(r"^=*\s*(?:no tests ran|\d+ [a-z]+).* in [\d.]+s")


@dataclass(frozen=True, slots=True)
class Part:
    """One run of pytest over some folders. A part without tests fails, unless it says otherwise."""

    name: str
    folders: tuple[str, ...]
    options: tuple[str, ...] = ("-n", "2")
    may_be_empty: bool = False


WAITING = ("-n", "3")
"""For parts whose tests wait for other processes most of the time."""

NAMED = (
    # Long ones first; one that waits beside one that works.
    Part("crash", ("tests/chaos", "tests/crash"), WAITING),
    Part("contract", ("tests/contract",)),
    Part("worker", ("tests/worker",), WAITING),
    Part("unit", ("tests/unit", "tests/lifecycle")),
    Part("gates", ("tests/gates", "tests/schedules", "tests/workflows"), WAITING),
    Part("simulation", ("tests/simulation",)),
    Part("bugs", ("tests/bugs",)),
    Part("bells", ("tests/bells",)),
    Part("borrowing", ("tests/borrowing",)),
    Part("flat", ("tests/worker_flat",), ()),
    Part("cli", ("tests/cli",)),
    Part("wire", ("tests/wire",), WAITING),
    Part("transfer", ("tests/transfer",)),
    Part("faults", ("tests/faults",)),
    Part("plans", ("tests/plans",)),
    Part("docs", ("tests/docs",)),
    Part("processes", ("tests/processes",)),
    Part("guard", ("tests/guard",)),
    Part("client", ("tests/client",)),
    Part("model", ("tests/model",)),
    Part("points", ("tests/points",)),
    Part(
        "newcomer", ("tests/newcomer",), ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
    ),
    Part("power", ("tests/power",)),
    Part("fuzz", ("tests/fuzz",)),
    Part("pooler", ("tests/contract", "tests/borrowing"), ("-n", "2", "--pooler")),
    Part("testing", ("tests/testing",)),
    Part("tour", ("tests/tour",)),
    Part("packaging", ("tests/packaging",), ()),
)
# What no other part names, so that a new folder is never forgotten.
REST = Part(
    "rest",
    ("tests",),
    ("-n", "2", *(f"--ignore={folder}" for part in NAMED for folder in part.folders)),
    may_be_empty=True,
)
PARTS = (*NAMED, REST)

running: set[int] = set()
"""The parts that run now, by the process that leads the session of each."""


@dataclass(frozen=True, slots=True)
class Result:
    """How one part ended."""

    part: Part
    verdict: str
    seconds: float
    counts: Counter[str]

    @property
    def is_good(self) -> bool:
        return self.verdict in {"passed", "no tests"}


def run(part: Part, *, deadline: float, at_once: bool) -> Result:
    """Run one part, showing its output. Nothing the part started in its session outlives it."""
    head = f"\n##### {part.name}\n"
    print(head if at_once else f"{part.name} ...", flush=True)
    limit_seconds = deadline - time.monotonic()
    missing = [folder for folder in part.folders if not (ROOT / folder).is_dir()]
    if missing:
        print(f"missing: {', '.join(missing)}")
        return Result(part, "folder missing", 0.0, Counter(errors=1))

    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", *part.folders, *part.options]
    counts: Counter[str] = Counter()
    said: list[str] = [head]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        running.add(process.pid)
        timer = Timer(max(limit_seconds, 0.0), kill_session, [process.pid])
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if at_once:
                    print(line, end="", flush=True)
                else:
                    said.append(line)
                if CLOSING_LINE.match(line):
                    counts = read_counts(line)
            status = process.wait()
        finally:
            timer.cancel()
            kill_session(process.pid)
            running.discard(process.pid)
    if not at_once:
        print("".join(said), end="", flush=True)
    seconds = time.monotonic() - started
    return Result(part, verdict_of(part, status, seconds >= limit_seconds), seconds, counts)


def read_counts(closing_line: str) -> Counter[str]:
    """Read pytest's closing line."""
    counts: Counter[str] = Counter()
    for number, what in COUNT.findall(closing_line):
        counts["errors" if what.startswith("error") else what] += int(number)
    return counts


def verdict_of(part: Part, status: int, is_over_limit: bool) -> str:
    if is_over_limit:
        return "out of time"
    if status == NO_TESTS_COLLECTED:
        return "no tests" if part.may_be_empty else "NO TESTS"
    return "passed" if status == 0 else "FAILED"


def kill_session(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def report(results: list[Result], seconds: float) -> None:
    """Print the time of each part and a closing line in pytest's form."""
    print("\n##### time of each part")
    for result in results:
        print(f"{result.part.name:<12} {result.seconds:8.1f} s  {result.verdict}")
    total: Counter[str] = Counter()
    for result in results:
        total += result.counts
    order = ("failed", "errors", "passed", "skipped", "xfailed", "xpassed")
    summary = ", ".join(f"{total[what]} {what}" for what in order if total[what])
    print(f" {summary or 'no tests ran'} in {seconds:.2f}s ".center(80, "="))


def main(names: list[str]) -> int:
    known = {part.name: part for part in PARTS}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"unknown part: {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    started = time.monotonic()
    parts = [known[name] for name in names] or PARTS
    run_one = partial(run, deadline=started + LIMIT_SECONDS, at_once=len(parts) == 1)
    with ThreadPoolExecutor(LANES) as lanes:
        try:
            results = list(lanes.map(run_one, parts))
        except BaseException:  # Ctrl-C
            lanes.shutdown(wait=False, cancel_futures=True)
            for leader in list(running):
                kill_session(leader)
            raise
    report(results, time.monotonic() - started)
    return 0 if all(result.is_good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
