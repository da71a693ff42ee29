"""python -m tests.processes [--seconds N]: 32 processes on one SQLite file for so long."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.processes.crew import Crew
from tests.processes.crowd import crowd


def main() -> None:
    """Let the crowd work, and say what was seen."""
    parser = argparse.ArgumentParser(prog="python -m tests.processes", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="default: 60")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="crowd-") as folder:
        members = Path(folder) / "crew"
        members.mkdir()
        with Crew(members) as crew:
            print(crowd(f"sqlite:///{folder}/jobs.db", crew, seconds=chosen.seconds))


if __name__ == "__main__":
    main()
