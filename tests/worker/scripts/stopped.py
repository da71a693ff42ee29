"""Several processes that are stopped before they start."""

from __future__ import annotations

from tenure import Tenure, Worker

app = Tenure()

if __name__ == "__main__":
    worker = Worker(app, processes=2)
    worker.stop()
    worker.run()
    print("returned", flush=True)
