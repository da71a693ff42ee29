"""A worker whose jobs have large arguments or results. At its end it tells its peak of memory."""

from __future__ import annotations

from pathlib import Path

from tenure import Tenure

app = Tenure()


@app.task(name="swallow")
async def swallow(text: str) -> int:
    return len(text)


@app.task(name="produce")
async def produce(size: int) -> str:
    return "x" * size


@app.task(name="fail", max_attempts=1)
async def fail(size: int) -> None:
    raise RuntimeError("x" * size)


if __name__ == "__main__":
    print("ready", flush=True)
    app.run_worker()
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith("VmHWM"):
            print(f"peak {line.split()[1]} kB", flush=True)
