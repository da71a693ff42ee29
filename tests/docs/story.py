"""A page that tells a story, played as its reader would: one folder, one shell, one worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import Snippet

STEP_SECONDS = 120.0
STRICT = 'set -euo pipefail; [ ! -f "$SAVED" ] || . "$SAVED"; '
SAVE = '\nexport -p >"$SAVED"\n'


class Story:
    """Runs the steps of a page in order. What a step exports is there for the next one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._worker: subprocess.Popen[str] | None = None
        ours = {k: v for k, v in os.environ.items() if not k.startswith("TENURE_")}
        ours.pop("DATABASE_URL", None)
        self.environment = ours | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{ours['PATH']}",
            "SAVED": str(folder / ".environment"),
            "PYTHONWARNINGS": "error",
        }

    def play(self, step: Snippet) -> str:
        """Run one step. Answers what it prints."""
        if step.marks[0] == "python":
            (self._folder / step.file).write_text(step.code, "utf-8")
            return self._finish(self._start(f"exec python {step.file}"))
        if step.marks == ("sh", "worker"):
            self.stop()
            self._worker = self._start(f"exec {step.code}")
            return ""
        return self._finish(self._start(step.code + SAVE))

    def stop(self) -> None:
        """Press Ctrl-C in the worker's terminal, if there is one. It ends well."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.send_signal(signal.SIGINT)
            self._finish(worker)

    def _start(self, commands: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", STRICT + commands], cwd=self._folder, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _finish(self, process: subprocess.Popen[str]) -> str:
        try:
            printed, told = process.communicate(timeout=STEP_SECONDS)
        finally:
            process.kill()
        assert process.returncode == 0, f"{printed}\n{told}"
        assert "Traceback" not in told, told
        return printed
