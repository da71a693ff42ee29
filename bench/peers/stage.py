"""One step of a trial: `python -m bench.peers.stage ADAPTER URL BOARD JOBS STEP [ARGUMENTS]`.

Runs in the competitor's own virtual environment. Writes one line of JSON when it is done.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Coroutine
from pathlib import Path

from bench.kills.ledger import Ledger
from bench.peers.adapter import Adapter
from bench.peers.board import Board
from bench.peers.catalogue import load


async def enqueue_many(adapter: Adapter, first: int, end: int) -> dict[str, float]:
    """Enqueue in bulk. Opening is not timed."""
    await adapter.open()
    start = time.perf_counter()
    await adapter.enqueue_many(first, end)
    seconds = time.perf_counter() - start
    await adapter.close()
    return {"seconds": seconds}


async def enqueue_paced(
    adapter: Adapter, first: int, end: int, least: float, most: float
) -> dict[str, float]:
    """Enqueue one at a time, each after a pause of random length, and note when it returned."""
    chance = random.Random(first)
    await adapter.open()
    for job in range(first, end):
        pause = chance.uniform(least, most)
        if adapter.on_loop:
            await asyncio.sleep(pause)
        else:
            time.sleep(pause)  # noqa: ASYNC251 - there is no loop
        await adapter.enqueue(job)
        adapter.board.committed(job)
    await adapter.close()
    return {}


def _run(adapter: Adapter, step: Coroutine[object, object, dict[str, float]]) -> dict[str, float]:
    if adapter.on_loop:
        return asyncio.run(step)
    try:
        step.send(None)
    except StopIteration as end:
        answer: dict[str, float] = end.value
        return answer
    raise RuntimeError(f"{adapter.name} is no synchronous client: it waited for a loop")


def main() -> None:
    """Do the step."""
    name, url, board, jobs, step, *rest = sys.argv[1:]
    if step == "work_slowly":
        worker, slots, hold_seconds = rest
        ledger = Ledger(Path(board), int(jobs), float(hold_seconds))
        load(name)(url, ledger, int(slots)).work(int(worker))
        return
    adapter = load(name)(url, Board(Path(board), int(jobs)))
    match step, rest:
        case "install", []:
            adapter.install()
            answer: dict[str, float] = {}
        case "enqueue_many", [first, end]:
            answer = _run(adapter, enqueue_many(adapter, int(first), int(end)))
        case "enqueue_paced", [first, end, least, most]:
            pauses = float(least), float(most)
            answer = _run(adapter, enqueue_paced(adapter, int(first), int(end), *pauses))
        case "work", [worker]:
            adapter.work(int(worker))
            return
        case _:
            raise SystemExit(__doc__)
    print("answer " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
