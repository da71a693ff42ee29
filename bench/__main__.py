"""python -m bench NAME [--quick] [--json] | all | list

NAME is a benchmark or the beginning of its name, up to a dot: `engine`, `engine.sqlite`.
"""

from __future__ import annotations

import argparse
import sys
import time

import msgspec

from bench.harness import Result
from bench.lab import Lab
from bench.registry import BENCHMARKS, chosen


def main() -> int:
    """Run what was asked for, one result per line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", help="a benchmark, the beginning of its name, `all` or `list`")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, noisier figures")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    options = parser.parse_args()
    if options.name == "list":
        for benchmark in BENCHMARKS:
            print(f"{', '.join(benchmark.names)}\n    {benchmark.summary}")
        return 0
    benchmarks = chosen(options.name)
    if not benchmarks:
        print(
            f"there is no benchmark {options.name!r}; see `python -m bench list`", file=sys.stderr
        )
        return 2
    show = _print_json if options.json else _print_row
    context = sys.stderr if options.json else sys.stdout
    with Lab(quick=options.quick) as lab:
        for line in lab.limits():
            print(f"# {line}", file=context)
        if not options.json:
            print(_ROW.format("name", "value", "unit", "ratio", "lowest..highest", "against"))
        start = time.monotonic()
        for benchmark in benchmarks:
            for result in benchmark.run(lab):
                show(result)
        print(f"# {time.monotonic() - start:.0f} s", file=context)
    return 0


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
