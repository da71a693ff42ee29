"""Run the long layers of tests whole, and print what each of them did.

    python -m scripts.trust                              all of them: more than an hour
    python -m scripts.trust chaos points                 some of them
    python -m scripts.trust chaos --kills 5000           one of them, with options of its own
    python -m scripts.trust --list                       what there is

A layer shows its own progress. The table in the end says what ran, how often, how many violations
there were, and how long it took. The exit status is 0 only if no layer found anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = ("pytest", "-n", "2", "--whole")
PASSED = re.compile(r"\b(\d+) passed")
FAILED = re.compile(r"\b(\d+) (?:failed|errors?)\b")


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: what it does, the module that does it, and how to read its count."""

    name: str
    what: str
    command: tuple[str, ...]
    count: Callable[[str], str]
    variables: dict[str, str] = field(default_factory=dict)
    """Options that the layer takes as variables of its environment."""


def last(pattern: str, what: str) -> Callable[[str], str]:
    """The number in the last match of a pattern, and what it counts."""

    def read(output: str) -> str:
        found = re.findall(pattern, output)
        return f"{found[-1]} {what}" if found else ""

    return read


def total(pattern: str, what: str) -> Callable[[str], str]:
    """The sum of the numbers in all matches of a pattern, and what it counts."""

    def read(output: str) -> str:
        found = [int(number.replace(",", "")) for number in re.findall(pattern, output)]
        return f"{sum(found):,} {what}" if found else ""

    return read


def kills_at_points(output: str) -> str:
    """Of the row of sums: statements and kills of each store, then the violations."""
    rows = re.findall(r"(?m)^\| all \| (.*) \|$", output)
    figures = [int(figure.replace(",", "")) for figure in rows[-1].split(" | ")] if rows else []
    return f"{sum(figures[1:-1:2]):,} kills" if figures else ""


LAYERS = (
    Layer(
        "simulation", "steps of the real code on a virtual clock, with faults",
        ("tests.simulation", "--steps", "2000000"),
        last(r"seeds \d+ to \d+: ([\d,]+) steps", "steps"),
    ),
    Layer(
        "model", "steps whose answers are compared with a model",
        ("tests.model.explore", "--steps", "100000"), last(r"([\d,]+) steps in", "steps"),
    ),
    Layer(
        "points", "SIGKILL at each statement of each operation",
        ("tests.points",), kills_at_points,
    ),
    Layer(
        "chaos", "processes killed, stopped and cut off at random, on three stores",
        ("tests.chaos", "--kills", "500"),
        total(r"(?m)^\| (?:sqlite|shared|postgres) \| ([\d,]+) \| [\d,]+ \|", "kills"),
    ),
    Layer(
        "contract", "every operation in every calling style; plans and pages among many rows",
        (*PYTEST, "tests/contract", "tests/borrowing", "tests/bells", "tests/faults",
         "tests/plans"),
        last(PASSED.pattern, "tests"),
    ),
    Layer(
        "wire", "PostgreSQL's wire cut at every message; a primary is lost",
        (*PYTEST, "tests/wire"),
        total(r"counted: ([\d,]+) (?!messages)", "cuts and half-open wires"),
    ),
    Layer(
        "pooler", "the contract through PgBouncer",
        (*PYTEST, "--pooler", "tests/contract"), last(PASSED.pattern, "tests"),
    ),
    Layer(
        "power", "images of a SQLite file after a power cut",
        ("tests.power",), last(r"power loss: .*?([\d,]+) images", "images"),
    ),
    Layer(
        "disk", "a SQLite disk that fails at each step",
        (*PYTEST, "tests/faults/test_sqlite_steps.py"), total(r"counted: ([\d,]+) ", "refusals"),
    ),
    Layer(
        "crowd", "32 processes on one SQLite file",
        ("tests.processes",), last(r"([\d,]+) calls", "calls"),
    ),
    Layer(
        "effects", "one effect per job, whatever happens to the workers",
        (*PYTEST, "tests/crash/test_exactly_once.py"),
        total(r"counted: ([\d,]+) effects", "effects"),
    ),
    Layer(
        "deaths", "busy processes killed at random",
        (*PYTEST, "tests/processes/test_deaths.py"), total(r"counted: ([\d,]+) deaths", "kills"),
    ),
    Layer(
        "flat", "a worker that does not grow",
        (*PYTEST, "tests/worker_flat"), total(r"counted: ([\d,]+) jobs", "jobs"),
    ),
    Layer(
        "fuzz", "nonsense as payloads, filters, URLs and arguments",
        (*PYTEST, "tests/fuzz"), last(PASSED.pattern, "properties"),
        {"--examples": "TENURE_EXAMPLES"},
    ),
    Layer(
        "bugs", "known bugs put into a copy of the code, each of which must be found",
        ("scripts.bugs",), last(r"(\d+) of \d+ bugs found", "bugs found"),
    ),
)  # fmt: skip
USUAL = {"TENURE_EXAMPLES": "5000"}


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a layer."""

    layer: Layer
    status: int
    output: str
    seconds: float

    @property
    def row(self) -> str:
        failed = FAILED.search(self.output)
        violations = "0" if self.status == 0 else failed[1] if failed else "FAILED"
        count = self.layer.count(self.output) or "?"
        return (
            f"| {self.layer.name} | {self.layer.what} | {count} | {violations}"
            f" | {self.seconds:,.0f} |"
        )


def run(layer: Layer, options: list[str]) -> Result:
    """Run a layer, show what it prints, and keep it."""
    started = time.monotonic()
    print(f"\n##### {layer.name}: {layer.what}", flush=True)
    arguments, variables = split(layer, options)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    printed = bytearray()
    with subprocess.Popen(
        [sys.executable, "-m", *layer.command, *arguments],
        cwd=ROOT, env={**USUAL, **env, **variables}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        while part := os.read(process.stdout.fileno(), 65536):  # not by lines: pytest prints dots
            os.write(sys.stdout.fileno(), part)
            printed += part
    output = printed.decode("utf-8", "replace")
    return Result(layer, process.returncode, output, time.monotonic() - started)


def split(layer: Layer, options: list[str]) -> tuple[list[str], dict[str, str]]:
    """Options for the command, and variables for its environment."""
    arguments, variables = [], {}
    left = iter(options)
    for option in left:
        if option in layer.variables:
            variables[layer.variables[option]] = next(left, "")
        else:
            arguments.append(option)
    return arguments, variables


def table(results: Iterable[Result]) -> str:
    """What ran, as Markdown."""
    head = ["| layer | what ran | count | violations | seconds |", "|---|---|--:|--:|--:|"]
    return "\n".join([*head, *(result.row for result in results)])


def main(words: list[str]) -> int:
    known = {layer.name: layer for layer in LAYERS}
    if words == ["--list"]:
        for layer in LAYERS:
            print(f"{layer.name:<12} {layer.what}")
        return 0
    named = 0
    while named < len(words) and words[named] in known:
        named += 1
    names, options = words[:named], words[named:]
    if options and len(names) != 1:
        text = f"options are for one layer, not {len(names)}: {' '.join(options)}"
        print(f"{text}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    results: list[Result] = []
    try:
        for name in names or known:
            results.append(run(known[name], options))  # noqa: PERF401 - kept when one is interrupted
    finally:
        print(f"\n{table(results)}", flush=True)
    return 0 if all(result.status == 0 for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
