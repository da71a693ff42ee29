"""A supervisor whose worker processes cannot even import the application."""

from __future__ import annotations

import logging

from tenure import Tenure

app = Tenure()

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    app.run_worker(processes=1 + 1)
else:
    raise ImportError("nothing works today")
