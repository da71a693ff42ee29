"""Run the tests in one pool of processes, and say how long each folder took.

`python scripts/test.py` runs everything; names of folders of `tests` choose. `pooler` is a share of
`tests/contract` through PgBouncer, in a run of its own. A test that hangs ends after the time that
`pyproject.toml` allows for one test; the whole has no limit of its own. The exit status is 0 only
if everything passed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
POOLER = "pooler"


def folders() -> list[str]:
    """Every folder that has tests."""
    found = (ROOT / "tests").glob("*/test_*.py")
    return sorted({path.parent.name for path in found})


def processes() -> int:
    """Three for each processor: many tests wait for other processes most of the time."""
    return int(os.environ.get("TENURE_TEST_PROCESSES") or 3 * (os.cpu_count() or 1))


def environment() -> dict[str, str]:
    """Ours. Tests start thousands of processes, and each would compile every module again."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run(*arguments: str) -> int:
    """Run pytest, and return its exit status. Nothing that it started in its session stays."""
    command = [sys.executable, "-m", "pytest", "-n", str(processes()), "--times", *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(names: list[str]) -> int:
    known = [*folders(), POOLER]
    if unknown := [name for name in names if name not in known]:
        print(f"unknown: {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = names or known
    started = time.monotonic()
    status = 0
    if paths := [f"tests/{name}" for name in chosen if name != POOLER]:
        status |= run(*(paths if names else ["tests"]))
    if POOLER in chosen:
        print(f"\n##### {POOLER}", flush=True)
        status |= run("--pooler", "tests/contract", "tests/borrowing")
    verdict = "FAILED" if status else "passed"
    print(f"##### {verdict} in {time.monotonic() - started:.0f} s")
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
