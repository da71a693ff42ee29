"""A worker process that is measured: `python -m bench.workloads.app URL KIND QUEUES NOTES`.

A script only: the children of a worker with process handlers load it again, with its arguments.
"""

from __future__ import annotations

import logging
import sys
from typing import cast

from bench.workloads.handlers import Kind, declare
from tenure import Tenure

logging.getLogger("tenure").setLevel(logging.ERROR)  # retries and idle queues are on purpose
url, kind, queues, notes = sys.argv[1:]
app = Tenure(url)
declare(app, cast(Kind, kind), notes)

if __name__ == "__main__":
    app.run_worker(dict.fromkeys(queues.split(","), 0))
