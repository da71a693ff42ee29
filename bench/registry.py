"""All benchmarks, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

from bench import lookups
from bench.engine import (
    postgres_claim_settle,
    postgres_enqueue,
    postgres_held_snapshot,
    postgres_wal,
    sqlite_claim_settle,
    sqlite_enqueue,
)
from bench.gates import drains, fairness, riders
from bench.harness import Result
from bench.lab import Lab
from bench.peers import (
    enqueue,
    postgres_drain,
    sqlite_concurrent_enqueue,
    sqlite_drain,
)
from bench.peers import (
    postgres_held_snapshot as peers_held_snapshot,
)
from bench.peers import (
    postgres_pickup as peers_pickup,
)
from bench.worker import (
    idle_cpu,
    mixed,
    postgres_pickup,
    postgres_throughput,
    sqlite_pickup,
    sqlite_throughput,
)
from bench.workflows import graphs
from bench.workloads import (
    backlog,
    counting,
    drain,
    footprint,
    held_snapshot,
    history,
    promote,
    scaling,
    scheduled,
    variety,
)
from bench.workloads import (
    enqueue as enqueue_loads,
)


@dataclass(frozen=True)
class Benchmark:
    """Some figures that are measured together. `all` leaves out those `on_request`."""

    names: tuple[str, ...]
    summary: str
    run: Callable[[Lab], Iterator[Result]]
    on_request: bool = False


def _benchmark(module: ModuleType, *, on_request: bool = False) -> Benchmark:
    summary = str(module.__doc__).splitlines()[0]
    return Benchmark(module.NAMES, summary, module.run, on_request)


BENCHMARKS = tuple(
    _benchmark(module)
    for module in (
        postgres_claim_settle,
        sqlite_claim_settle,
        postgres_enqueue,
        sqlite_enqueue,
        postgres_wal,
        postgres_held_snapshot,
        postgres_throughput,
        sqlite_throughput,
        mixed,
        postgres_pickup,
        sqlite_pickup,
        idle_cpu,
    )
) + tuple(
    _benchmark(module, on_request=True)
    for module in (
        postgres_drain,
        sqlite_drain,
        enqueue,
        sqlite_concurrent_enqueue,
        peers_pickup,
        peers_held_snapshot,
        enqueue_loads,
        drain,
        variety,
        counting,
        scaling,
        backlog,
        promote,
        scheduled,
        held_snapshot,
        history,
        footprint,
        drains,
        fairness,
        riders,
        graphs,
        lookups,
    )
)


def chosen(names: Sequence[str]) -> list[Benchmark]:
    """The benchmarks of these names or below them: `engine`, `engine.sqlite`, or a full name."""
    return [
        benchmark
        for benchmark in BENCHMARKS
        if ("all" in names and not benchmark.on_request)
        or any(
            each == name or each.startswith(f"{name}.")
            for name in names
            for each in benchmark.names
        )
    ]
