"""A corpus on one GPU: each text is embedded once, urgent texts first, one at a time.

    TENURE_URL=sqlite:///corpus.db python -m examples.corpus add FOLDER      # as often as you like
    TENURE_URL=sqlite:///corpus.db python -m examples.corpus work            # as many as you like
    TENURE_URL=sqlite:///corpus.db python -m examples.corpus show

- *Content-hash idempotency*: each text has one job for ever. Its unique key is the hash of the
  text. To add a folder twice, or the same text under two names, adds nothing.
- *Priorities*: texts in a folder called `urgent` run first.
- *Never in parallel*: the gate lets one job use the GPU, across all workers. If its worker dies,
  its permit is free again when the lease expires.
"""

import hashlib
import os
import sys
import time
from collections import Counter
from pathlib import Path

from tenure import Gate, Tenure, Unique, Until, Worker

GPU = Gate("gpu", max_running=1)
URGENT = -10
CALL_SECONDS = 0.01

app = Tenure()  # on the database that TENURE_URL names


class Gpu:
    """Stands for the model. It fails if two calls overlap."""

    def __init__(self, busy: Path) -> None:
        self._busy = busy

    def embed(self, text: str) -> list[int]:
        """How often each letter occurs."""
        os.close(os.open(self._busy, os.O_CREAT | os.O_EXCL))  # fails if another call runs
        try:
            time.sleep(CALL_SECONDS)
            counts = Counter(text.lower())
            return [counts[letter] for letter in "abcdefghijklmnopqrstuvwxyz"]
        finally:
            self._busy.unlink()


@app.task(queue="gpu", gate=GPU, max_attempts=1)
def embed(text: str) -> list[int]:
    """One call of the GPU."""
    return Gpu(Path(os.environ.get("GPU_BUSY", "gpu-busy"))).embed(text)


def add(folder: Path) -> tuple[int, int]:
    """Enqueue a job for each new text. Returns how many texts are new, and how many were found."""
    calls = []
    for file in sorted(folder.rglob("*.txt")):
        text = file.read_text("utf-8")
        digest = hashlib.sha256(text.encode()).hexdigest()
        options = embed.options(
            unique=Unique(key=digest, until=Until.FOREVER),
            priority=URGENT if "urgent" in file.parts else 0,
        )
        calls.append(options.call(text))
    handles = app.enqueue_many(calls)
    return sum(handle.created for handle in handles), len(handles)


def main(words: list[str]) -> None:
    """The command line."""
    app.migrate()
    match words:
        case ["add", folder]:
            new, seen = add(Path(folder))
            print(f"{new} of {seen} texts are new")
        case ["work"]:
            Worker(app, {"gpu": 0}, lease_seconds=5.0, heartbeat_seconds=1.0).run()
        case ["show"]:
            for gate in app.gates():
                print(f"gate {gate.name}: {gate.running} running, {gate.waiting} waiting")
        case _:
            print(__doc__)
    app.close()


if __name__ == "__main__":
    main(sys.argv[1:])
