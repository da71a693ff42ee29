"""A newcomer's first five minutes: a clean clone, a clean environment, and what the README says.

Takes packages from wherever pip takes them here. Everything else is as on a machine that has never
seen Tenure: no variable, no home, no .venv.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import page
from tests.support.clean import clean_environment, clone
from tests.support.terminal import Terminal

INSTALL_SECONDS = 600.0


def first_command() -> str:
    """The first line that the README tells to type."""
    shell = next(block for block in page("README.md").blocks if block.marks == ("sh",))
    return shell.text.splitlines()[0]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_clean_clone_runs_the_demo_and_then_the_first_example_as_printed(tmp_path: Path) -> None:
    here, env = clone(tmp_path / "tenure"), clean_environment(tmp_path / "home")
    assert first_command().split("#")[0].strip() == "make demo"

    with Terminal(["bash", "-c", first_command()], cwd=here, env=env) as terminal:
        status = terminal.finish(seconds=INSTALL_SECONDS)
        told = terminal.screen.transcript
    assert status == 0, told
    assert "setup: Python 3." in told
    assert "\rsetup: Collecting apsw" in told  # what it is busy with, in one line that changes
    assert not terminal.screen.is_alternate
    assert any("SIGKILL to worker" in frame for frame in terminal.screen.frames)
    assert "every job is accounted for" in told
    assert "3,009 enqueued, 3,009 succeeded, 0 left, 0 missing" in told

    # Nothing is set up twice, and nothing is left behind.
    assert subprocess.run(["make", "-q", ".venv/.runs"], cwd=here, env=env).returncode == 0
    assert list(Path(env["TMPDIR"]).iterdir()) == []

    first = page("README.md").snippets[0]
    (here / "first.py").write_text(first.code, "utf-8")
    done = subprocess.run(
        [".venv/bin/python", "first.py"], cwd=here, env=env, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == first.output
