"""How child processes find the application, and what is said when they cannot."""

from __future__ import annotations

import json

import pytest

from tenure import Job, State, Tenure, Worker
from tenure.errors import ConfigError
from tenure.job import NewJob
from tests.worker.conftest import Run
from tests.worker.support import ended
from tests.worker.test_handlers import station_job

pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


def output_of(job: Job) -> str:
    assert job.error is not None
    return str(json.loads(job.error)["output"])


def enqueue(app: Tenure, task: str) -> int:
    return app.store.enqueue([NewJob(task=task, max_attempts=1)])[0].id


def test_a_script_that_is_run_directly_works(app: Tenure, run_script: Run) -> None:
    script = run_script("station")
    script.wait_for("serves")
    job = ended(app, station_job(app, "slow_child", seconds=0))
    assert job.state is State.SUCCEEDED
    assert job.result is not None
    assert int(job.result) != script.pid


def test_an_application_of_a_module_is_imported_from_there(app: Tenure, run_script: Run) -> None:
    """Even when the script that started the worker has it under a name of its own."""
    script = run_script("launcher")
    script.wait_for("serves")
    job = ended(app, enqueue(app, "tests.worker.isolated.pid"))
    assert job.state is State.SUCCEEDED
    assert script.output.count("serves") == 1


def test_a_script_that_starts_its_worker_on_import_is_told_so(app: Tenure, run_script: Run) -> None:
    """It would start a worker in each child, and so on."""
    script = run_script("naive")
    script.wait_for("serves")
    job = ended(app, enqueue(app, "naive.pid"))
    assert (job.state, job.reason) == (State.FAILED, "exit 1")
    assert 'if __name__ == "__main__"' in output_of(job)
    assert script.output.count("serves") == 1


def test_an_application_that_cannot_be_imported_says_why(app: Tenure, run_script: Run) -> None:
    script = run_script("broken")
    script.wait_for("serves")
    job = ended(app, enqueue(app, "broken.pid"))
    assert (job.state, job.reason) == (State.FAILED, "exit 1")
    assert "ImportError: a configuration file is missing" in output_of(job)
    assert "ImportError: a configuration file is missing" in script.output


def test_an_application_that_has_no_name_is_refused(app: Tenure) -> None:
    @app.task(isolation="process")
    def isolated() -> None: ...

    with pytest.raises(ConfigError, match=r"top level of a module, such as app = Tenure\(...\)"):
        Worker(app).run()
    with pytest.raises(ConfigError, match="top level of a module"):
        Worker(app, processes=2).run()
