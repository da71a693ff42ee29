"""How child processes find the application, and what is said when they cannot."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tenure import State, Tenure, Worker
from tenure.errors import ConfigError
from tenure.rules.job import NewJob
from tenure.worker.children import minder as children
from tests.worker import isolated
from tests.worker.conftest import Run
from tests.worker.support import ended, eventually, working
from tests.worker.test_handlers import station_job

pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


NOT_STARTED = "the child process did not start the handler: "


def enqueue(app: Tenure, task: str) -> int:
    return app.store.enqueue([NewJob(task=task, max_attempts=1)])[0].id


def why_put_back(app: Tenure, id: int) -> str:
    """Why this job, which could not start, waits for another try, uncharged."""
    eventually(lambda: app.get(id).state is State.SCHEDULED)
    job = app.get(id)
    assert job.attempts == 0
    assert job.reason is not None
    assert job.reason.startswith(NOT_STARTED)
    return job.reason.removeprefix(NOT_STARTED)


@pytest.mark.slow
def test_a_script_that_is_run_directly_works(app: Tenure, run_script: Run) -> None:
    script = run_script("station")
    script.wait_for("serves")
    job = ended(app, station_job(app, "slow_child", seconds=0))
    assert job.state is State.SUCCEEDED
    assert job.result is not None
    assert int(job.result) != script.pid


@pytest.mark.slow
def test_an_application_of_a_module_is_imported_from_there(app: Tenure, run_script: Run) -> None:
    """Even when the script that started the worker has it under a name of its own."""
    script = run_script("launcher")
    script.wait_for("serves")
    job = ended(app, enqueue(app, "tests.worker.isolated.pid"))
    assert job.state is State.SUCCEEDED
    assert script.output.count("serves") == 1


@pytest.mark.slow
def test_a_script_that_starts_its_worker_on_import_is_told_so(app: Tenure, run_script: Run) -> None:
    """It would start a worker in each child, and so on."""
    script = run_script("naive")
    script.wait_for("serves")
    why = why_put_back(app, enqueue(app, "naive.pid"))
    assert why.startswith("exit 78; ")
    assert 'if __name__ == "__main__"' in why
    assert script.output.count("serves") == 1


@pytest.mark.slow
def test_an_application_that_cannot_be_imported_says_why(app: Tenure, run_script: Run) -> None:
    script = run_script("broken")
    script.wait_for("serves")
    why = why_put_back(app, enqueue(app, "broken.pid"))
    assert why == "exit 1; ImportError: a configuration file is missing"
    assert "ImportError: a configuration file is missing" in script.output


@pytest.mark.slow
def test_a_child_that_is_terminated_while_it_imports_costs_nothing(
    app: Tenure, run_script: Run
) -> None:
    """A service manager may tell all processes of a service to end."""
    script = run_script("broken", "asleep")
    script.wait_for("serves")
    id = enqueue(app, "broken.pid")
    found = eventually(lambda: re.search(r"child (\d+) imports", script.output))
    os.kill(int(found[1]), signal.SIGTERM)
    assert why_put_back(app, id).startswith("exit 143 (SIGTERM)")


def test_a_child_that_takes_too_long_to_import_costs_nothing(
    children_app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "START_SECONDS", 0.0)
    with working(children_app, process_slots=1):
        handle = isolated.pid.enqueue()
        why = why_put_back(children_app, handle.id)
    assert why.startswith("it took longer than 0 s to start")


def test_an_application_that_has_no_name_is_refused(app: Tenure) -> None:
    @app.task(isolation="process")
    def isolated() -> None: ...

    with pytest.raises(ConfigError, match=r"top level of a module, such as app = Tenure\(...\)"):
        Worker(app).run()
    with pytest.raises(ConfigError, match="top level of a module"):
        Worker(app, processes=2).run()
