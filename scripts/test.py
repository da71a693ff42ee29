"""Run the test suite part by part and say how long each part took.

`python scripts/test.py` runs every part; names as arguments choose parts. All parts run even when
one fails. The exit status is 0 only if every part passed, and the whole took at most 25 minutes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 25 * 60
NO_TESTS_COLLECTED = 5
COUNT = re.compile(r"(\d+) (passed|failed|skipped|xfailed|xpassed|errors?)\b")
CLOSING_LINE = re.compile(r"^=*\s*(?:no tests ran|\d+ [a-z]+).* in [\d.]+s")


@dataclass(frozen=True, slots=True)
class Part:
    """One run of pytest over some folders. A part without tests fails, unless it says otherwise."""

    name: str
    folders: tuple[str, ...]
    options: tuple[str, ...] = ("-n", "3")
    may_be_empty: bool = False


WAITING = ("-n", "4")
"""For parts whose tests wait for other processes most of the time."""

NAMED = (
    Part("unit", ("tests/unit", "tests/lifecycle")),
    Part("tour", ("tests/tour",)),
    Part("contract", ("tests/contract",)),
    Part("client", ("tests/client",)),
    Part("worker", ("tests/worker",), WAITING),
    Part("crash", ("tests/chaos", "tests/crash"), WAITING),  # the longest first
    Part("gates", ("tests/gates", "tests/schedules", "tests/workflows"), WAITING),
    Part("borrowing", ("tests/borrowing",)),
    Part("bells", ("tests/bells",)),
    Part("testing", ("tests/testing",)),
    Part("transfer", ("tests/transfer",)),
    Part("flat", ("tests/worker_flat",), ()),
    Part("statements", ("tests/statements",)),
    Part("model", ("tests/model",)),
    Part("simulation", ("tests/simulation",)),
    Part("processes", ("tests/processes",)),
    Part("faults", ("tests/faults",)),
    Part("power", ("tests/power",)),
    Part("fuzz", ("tests/fuzz",)),
    Part("wire", ("tests/wire",), WAITING),
    Part("pooler", ("tests/contract",), ("-n", "3", "--pooler")),
    Part("points", ("tests/points",)),
    Part("plans", ("tests/plans",)),
    Part("guard", ("tests/guard",)),
    Part("docs", ("tests/docs",)),
    Part("cli", ("tests/cli",)),
    Part(
        "newcomer", ("tests/newcomer",), ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
    ),
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


def run(part: Part, *, limit_seconds: float) -> Result:
    """Run one part, showing its output. Nothing the part started in its session outlives it."""
    print(f"\n##### {part.name}", flush=True)
    missing = [folder for folder in part.folders if not (ROOT / folder).is_dir()]
    if missing:
        print(f"missing: {', '.join(missing)}")
        return Result(part, "folder missing", 0.0, Counter(errors=1))

    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", *part.folders, *part.options]
    counts: Counter[str] = Counter()
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        timer = Timer(max(limit_seconds, 0.0), kill_session, [process.pid])
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                if CLOSING_LINE.match(line):
                    counts = read_counts(line)
            status = process.wait()
        finally:
            timer.cancel()
            kill_session(process.pid)
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
    results = []
    for part in [known[name] for name in names] or PARTS:
        used_seconds = time.monotonic() - started
        results.append(run(part, limit_seconds=LIMIT_SECONDS - used_seconds))
    report(results, time.monotonic() - started)
    return 0 if all(result.is_good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
