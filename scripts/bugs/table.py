"""The table of the documentation: what found each bug. Rows of bugs that were not asked stay."""

from __future__ import annotations

from scripts.bugs import BUGS
from scripts.bugs.bug import ROOT, Bug
from scripts.bugs.finding import Finding
from scripts.bugs.rules import RULES

PAGE = ROOT / "docs" / "explanation" / "reliability-bugs.md"
HEAD = """# Reliability: seeded bugs

<!-- Written by `make trust ARGS="bugs --write"`: do not edit. -->

A test that has never failed proves little. These are bugs that other queues have had, or that a
rule of this one prevents. Each is a small patch. `make trust ARGS=bugs` puts them into a copy of the
code, one at a time, and asks the layers of tests in the order of what they cost, until one finds the bug: the
[simulation](reliability-simulation.md) (seeds from 1 on), then the test that is named for the bug,
on each database that it is about. A marked rule (in bold) must be noticed by its own test as well.
`make test` checks that every patch still fits the code and stands in this table.

{count} bugs, all found: {simulated} by the simulation, {tested} by their tests, {both} of them by
both. Where the simulation was not asked, the reason is in italics. It is an argument;
`make trust ARGS="bugs --ask-all"` asks both layers about every bug.

| bug | what is wrong | simulation | its test |
|---|---|---|---|
"""


def rows() -> dict[str, tuple[str, str]]:
    """What the page says: of each bug, by its title, what the simulation and its test said."""
    found: dict[str, tuple[str, str]] = {}
    if not PAGE.exists():
        return found
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| bug |"):
            name, how, simulated, tested = [cell.strip() for cell in line.split(" | ")]
            title = f"{name.removeprefix('| ').strip('*')}: {how}"
            found[title] = simulated, tested.removesuffix(" |").removesuffix("|")
    return found


def was_seen(simulated: str) -> bool:
    """Does this cell say that the simulation has found it?"""
    return simulated.endswith(" steps") and not simulated.startswith("nothing in ")


def write(findings: list[Finding]) -> None:
    """Put these into the page."""
    known = rows() | {finding.bug.title: _cells(finding) for finding in findings}
    lines = [_row(bug, *known[bug.title]) for bug in BUGS if bug.title in known]
    cells = [known[bug.title] for bug in BUGS if bug.title in known]
    head = HEAD.format(
        count=len(lines), simulated=sum(was_seen(first) for first, _ in cells),
        tested=sum(bool(second) for _, second in cells),
        both=sum(was_seen(first) and bool(second) for first, second in cells),
    )  # fmt: skip
    PAGE.write_text(head + "\n".join(lines) + "\n", "utf-8")


def _cells(finding: Finding) -> tuple[str, str]:
    bug = finding.bug
    simulated = next((x for x in finding.layers if x.name == "simulation"), None)
    tested = next((x for x in finding.layers if x is not simulated and x.found), None)
    said = simulated.said if simulated else f"*{bug.unseen or 'only PostgreSQL has it'}*"
    noticed = f"{tested.name}: `{bug.test.split('::')[-1]}`" if tested else ""
    return said.replace("|", "/").replace("\n", " "), noticed


def _row(bug: Bug, simulated: str, tested: str) -> str:
    name = f"**{bug.name}**" if bug in RULES else bug.name
    return f"| {name} | {bug.how} | {simulated} | {tested} |"
