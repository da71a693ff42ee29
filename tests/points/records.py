"""What processes write down, by the time of the scene: see `tenure.testing.recorder`."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from tenure.testing.recorder import Line, RecordingEnvironment
from tests.support.stores import Clock


class Records(RecordingEnvironment):
    """The file of one process."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._clock = clock
        super().__init__(folder)

    def now(self) -> datetime:
        return self._clock.now

    def write(self, line: Line) -> None:
        """Something that no store sees."""
        self._log.write(line)

    def close(self) -> None:
        """There may be thousands of these in one process."""
        os.close(self._log._file)
