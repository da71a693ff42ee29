"""The results of a run as a Markdown page, with plots beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench import plots
from bench.gates.targets import TARGETS as GATE_TARGETS
from bench.harness import Result
from bench.peers.targets import TARGETS as PEER_TARGETS
from bench.workflows.targets import TARGETS as WORKFLOW_TARGETS
from bench.workloads.targets import TARGETS as WORKLOAD_TARGETS

TARGETS = PEER_TARGETS | WORKLOAD_TARGETS | GATE_TARGETS | WORKFLOW_TARGETS

HEAD = "| figure | ours | unit | theirs | ratio | lowest..highest | wanted | |"
RULE = "|---|--:|---|---|--:|---|---|---|"
SEEN = {
    "worker_cpu_us_per_job": "CPU µs/job",
    "commits_per_job": "commits/job",
    "wal_bytes_per_job": "WAL B/job",
    "worker_mib": "MiB",
    "twice": "ran twice",
}


class Report:
    """Collects results. With a folder, writes each at once, and the page at the end."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._limits: list[str] = []
        self._results: list[Result] = []
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "results.jsonl").unlink(missing_ok=True)

    def limit(self, line: str) -> None:
        """A line about what the machine can do."""
        self._limits.append(line)

    def add(self, result: Result) -> None:
        """One more."""
        self._results.append(result)
        if self._folder is not None:
            with (self._folder / "results.jsonl").open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")

    def finish(self, failures: Sequence[str]) -> None:
        """Write the page and the plots."""
        if self._folder is None:
            return
        drawn = list(_plots(self._results))
        for name, picture in drawn:
            (self._folder / name).write_text(picture)
        page = markdown(self._results, self._limits, failures, [name for name, _ in drawn])
        (self._folder / "report.md").write_text(page)


def markdown(
    results: Sequence[Result],
    limits: Sequence[str],
    failures: Sequence[str],
    pictures: Sequence[str] = (),
) -> str:
    """The whole page."""
    parts = ["# Results\n", *(f"- {line}" for line in limits), ""]
    parts += ["Each ratio is ours / theirs, the median of the rounds of this run.\n", HEAD, RULE]
    parts += [_row(result) for result in results]
    parts += ["", *_seen(results), *_settings(results)]
    parts += [f"![{name}]({name})\n" for name in pictures]
    if failures:
        parts += ["## Missing\n", *(f"- {failure.splitlines()[0]}" for failure in failures), ""]
    return "\n".join(parts)


def _row(result: Result) -> str:
    target = TARGETS.get(result.name)
    lowest, highest = result.spread
    cells = [
        result.name,
        _number(result.value),
        result.unit,
        result.against,
        f"{result.ratio:.2f}",
        f"{lowest:.2f}..{highest:.2f}",
        "" if target is None else str(target),
        "" if target is None else ("yes" if target.is_met(result.ratio) else "**no**"),
    ]
    return f"| {' | '.join(cells)} |"


def _seen(results: Sequence[Result]) -> Iterator[str]:
    """What else the drains showed."""
    drains = [each for each in results if each.detail and "worker_mib" in _part(each, "ours_saw")]
    if not drains:
        return
    yield "## What the drains cost\n"
    yield f"| figure | side | {' | '.join(SEEN.values())} |"
    yield f"|---|---|{'--:|' * len(SEEN)}"
    for result in drains:
        for side in ("ours", "theirs"):
            part = _part(result, f"{side}_saw")
            cells = [_number(part[key]) if key in part else "" for key in SEEN]
            yield f"| {result.name} | {side} | {' | '.join(cells)} |"
    yield ""


def _settings(results: Sequence[Result]) -> Iterator[str]:
    told: dict[str, str] = {}
    for result in results:
        if result.detail and "their_settings" in result.detail:
            peer = result.name.rpartition(".")[2]
            packages = result.detail["their_packages"]
            versions = ", ".join(packages) if isinstance(packages, list) else ""
            told.setdefault(peer, f"- **{peer}**: {result.detail['their_settings']} ({versions})")
    if told:
        yield "## Settings\n"
        yield from told.values()
        yield ""


def _plots(results: Sequence[Result]) -> Iterator[tuple[str, str]]:
    groups: dict[str, list[plots.Bar]] = {}
    for result in results:
        theirs = (result.detail or {}).get("theirs")
        if isinstance(theirs, int | float):
            workload, _, peer = result.name.rpartition(".")
            groups.setdefault(f"{workload}, {result.unit}", []).append(
                plots.Bar(peer, result.value, float(theirs))
            )
    for title, bars in groups.items():
        yield f"{title.partition(',')[0]}.svg", plots.bars(title, bars)
    curves: list[plots.Line] = []
    for result in results:
        if result.detail and "their_curve" in result.detail:
            peer = result.name.rpartition(".")[2]
            curves.append(plots.Line(peer, _rates(result, "their_curve")))
            if not any(line.label == "Tenure" for line in curves):
                curves.insert(0, plots.Line("Tenure", _rates(result, "our_curve")))
    if curves:
        title = "drain rate under a held snapshot, against the first round"
        yield "held_snapshot_curves.svg", plots.lines(title, curves)

    for result in results:
        if result.detail and "curve" in result.detail:
            curve = plots.Line(result.name.rpartition(".")[2], _rates(result, "curve"))
            title = f"{result.name}, {result.unit}, against the first round"
            yield f"{result.name}.svg", plots.lines(title, [curve])


def _rates(result: Result, key: str) -> list[float]:
    """A curve, relative to its first round."""
    values = (result.detail or {})[key]
    assert isinstance(values, list)
    return [value / values[0] for value in values]


def _part(result: Result, key: str) -> dict[str, float]:
    part = (result.detail or {}).get(key)
    return part if isinstance(part, dict) else {}


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
