"""python -m bench NAME... [--quick] [--json] | all | list

NAME is a benchmark or the beginning of its name, up to a dot: `engine.sqlite`, `workloads`.
`all` leaves out `workloads`, which take half an hour, and `peers`, which installs other queues into
environments of their own.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec

from bench.harness import ROUNDS, Result
from bench.lab import Lab
from bench.limits import bare_loops
from bench.peers.catalogue import peers_named
from bench.registry import BENCHMARKS, chosen
from bench.report import Report


def main() -> int:
    """Run what was asked for, one result per line."""
    options = _parse()
    if options.names == ["list"]:
        for benchmark in BENCHMARKS:
            print(f"{', '.join(benchmark.names)}\n    {benchmark.summary}")
        return 0
    unknown = [name for name in options.names if not chosen([name])]
    try:
        peers = peers_named(options.peers)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if unknown:
        print(f"there is no benchmark {unknown[0]!r}; see `python -m bench list`", file=sys.stderr)
        return 2
    benchmarks = chosen(options.names)
    show = _print_json if options.json else _print_row
    context = sys.stderr if options.json else sys.stdout
    with Lab(
        quick=options.quick,
        asked=options.names,
        peers=peers,
        rounds=options.rounds,
        scale=options.scale,
        sizes=options.sizes,
    ) as lab:
        report = Report(options.out)
        with_loops = any(benchmark.on_request for benchmark in benchmarks)
        for line in [*lab.limits(), *(bare_loops(lab) if with_loops else [])]:
            print(f"# {line}", file=context, flush=True)
            report.limit(line)
        if not options.json:
            print(_ROW.format("name", "value", "unit", "ratio", "lowest..highest", "against"))
        start = time.monotonic()
        for benchmark in benchmarks:
            for result in benchmark.run(lab):
                show(result)
                report.add(result)
        print(f"# {time.monotonic() - start:.0f} s", file=context)
        report.finish(lab.failures)
    return 1 if lab.failures else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="a benchmark, the beginning of its name, `all` or `list`",
    )
    parser.add_argument("--quick", action="store_true", help="smaller sizes, noisier figures")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument(
        "--out", type=Path, help="a folder for results.jsonl, report.md and plots", metavar="DIR"
    )
    parser.add_argument("--peers", help="peers with commas between, or `all`; else the usual ones")
    parser.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        help="rounds of peers and workloads (default %(default)s)",
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="jobs of peers and workloads, times this"
    )
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(size) for size in text.split(",")],
        default=(),
        help="lookups: numbers of finished jobs with commas between, the smallest is the base",
    )
    return parser.parse_args()


_ROW = "{:<46} {:>11} {:<14} {:>7}  {:<15} {}"


def _print_row(result: Result) -> None:
    lowest, highest = result.spread
    print(
        _ROW.format(
            result.name,
            f"{result.value:,.0f}" if result.value >= 100 else f"{result.value:.2f}",
            result.unit,
            f"{result.ratio:.3f}",
            f"{lowest:.3f}..{highest:.3f}",
            result.against,
        ),
        flush=True,
    )


def _print_json(result: Result) -> None:
    print(msgspec.json.encode(result).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
