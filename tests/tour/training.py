"""A small application in a module of its own, as other processes must be able to import it.

It names no database: TENURE_URL does.
"""

import os

from tenure import Running, Tenure

app = Tenure()


@app.task(isolation="process")
def train(job: Running, epochs: int) -> dict[str, int]:
    """Runs in a child process that can be killed without harm to the worker."""
    for epoch in range(epochs):
        job.progress(epoch / epochs, f"epoch {epoch}")
        job.save(epoch)
    return {"epochs": epochs, "pid": os.getpid()}


@app.task(isolation="process", max_attempts=1)
def segfault() -> None:
    """What a bug in a native library looks like."""
    print("about to fall over", flush=True)
    os.abort()


@app.task(isolation="process", max_attempts=1, timeout_seconds=0.3)
def spin() -> None:
    """A handler that nothing but a signal can stop."""
    while True:
        pass
