"""Where settings come from: option > TENURE_* > pyproject.toml > default."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenure.store import open_store
from tests.cli.terminal import run, start
from tests.cli.world import SHOP, World
from tests.worker.support import eventually

pytestmark = pytest.mark.slow  # processes, one per command


def make(folder: Path, name: str) -> str:
    """An empty database."""
    url = f"sqlite:///{folder}/{name}.db"
    with open_store(url):
        return url


def test_the_order(tmp_path: Path) -> None:
    option, variable, project = (make(tmp_path, name) for name in ("option", "variable", "project"))
    (tmp_path / "pyproject.toml").write_text(f"[tool.tenure]\nurl = '{project}'\n")
    below = tmp_path / "deep" / "below"
    below.mkdir(parents=True)
    status = ("db", "status", "--json")
    for words, url, expected in (
        (("--url", option, *status), variable, option), (status, variable, variable),
        (status, None, project),
    ):  # fmt: skip
        done = run(*words, url=url, folder=below)
        assert done.code == 0, done
        assert done.lines[0]["database"] == expected


def test_a_relative_file_lies_beside_the_project_file(tmp_path: Path) -> None:
    make(tmp_path, "jobs")
    (tmp_path / "pyproject.toml").write_text("[tool.tenure]\nurl = 'sqlite:///jobs.db'\n")
    below = tmp_path / "below"
    below.mkdir()
    for folder in (tmp_path, below):
        assert run("ls", folder=folder).out == "no jobs\n"
    assert list(below.iterdir()) == []


def test_options_have_variables_and_defaults(world: World) -> None:
    project = world.folder / "pyproject.toml"
    project.write_text("[tool.tenure.ls]\nlimit = 3\n")
    variable = {"TENURE_LS_LIMIT": "2"}
    for words, env, expected in (
        (("ls", "--json", "--limit", "1"), variable, 1), (("ls", "--json"), variable, 2),
        (("ls", "--json"), {}, 3),
    ):  # fmt: skip
        done = run(*words, url=world.url, folder=world.folder, env=env)
        assert len(done.lines) == expected
    project.write_text("[tool.tenure.queues.pause]\nreason = 'closed'\n")
    done = run("queues", "pause", "mail", "--json", url=world.url, folder=world.folder)
    assert done.lines == [{"queue": "mail", "paused": True, "reason": "closed", "used": False}]


@pytest.mark.parametrize("named_by", ["project", "variable"])
def test_a_worker_is_described_by_its_settings(named_by: str, tmp_path: Path) -> None:
    """The application, its queues and its database: no word but `worker` is needed."""
    (tmp_path / "shop.py").write_text(SHOP)
    url = make(tmp_path, "jobs")
    lines = ["[tool.tenure.worker]", "queue = ['vip=2']", "log-level = 'ERROR'", "[tool.tenure]"]
    lines += [f"url = '{url}'", "app = 'shop:app'"] if named_by == "project" else []
    (tmp_path / "pyproject.toml").write_text("\n".join(lines))
    env = {} if named_by == "project" else {"TENURE_URL": url, "TENURE_APP": "shop:app"}
    process = start("worker", folder=tmp_path, env=env)
    try:
        with open_store(url) as store:
            [worker] = eventually(lambda: process.poll() is not None or store.workers())
        assert worker.queues == {"vip": 2}
        process.terminate()
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
    finally:
        process.kill()
        process.communicate()


def test_the_application_names_the_database(tmp_path: Path) -> None:
    """With --app and no URL a job goes where the application's own jobs go."""
    url = make(tmp_path, "jobs")
    (tmp_path / "shop.py").write_text(SHOP.replace("Tenure()", f"Tenure({url!r})"))
    done = run("enqueue", "shop.send", "--app", "shop", "--args", '{"to": "x"}', folder=tmp_path)
    assert done.code == 0, done
    with open_store(url) as store:
        [job] = store.list_jobs().jobs
    assert (job.task, job.queue, job.max_attempts) == ("shop.send", "mail", 1)


def test_the_address_in_the_code_wins_over_the_environment(tmp_path: Path) -> None:
    """As in Python. --url wins over both."""
    words = ("enqueue", "shop.send", "--app", "shop", "--args", '{"to": "x"}')
    urls = [make(tmp_path, name) for name in ("code", "env", "option")]
    (tmp_path / "shop.py").write_text(SHOP.replace("Tenure()", f"Tenure({urls[0]!r})"))
    done = run(*words, folder=tmp_path, url=urls[1])
    assert done.code == 0, done
    assert "the code wins" in done.err
    assert run("--url", urls[2], *words, folder=tmp_path, url=urls[1]).code == 0
    counts = []
    for url in urls:
        with open_store(url) as store:
            counts.append(len(store.list_jobs().jobs))
    assert counts == [1, 0, 1]


def test_the_address_in_the_code_wins_over_the_project_file(tmp_path: Path) -> None:
    words = ("enqueue", "shop.send", "--app", "shop", "--args", '{"to": "x"}')
    code, project = (make(tmp_path, name) for name in ("code", "project"))
    (tmp_path / "shop.py").write_text(SHOP.replace("Tenure()", "Tenure('sqlite:///code.db')"))
    file = tmp_path / "pyproject.toml"
    file.write_text(f"[tool.tenure]\nurl = '{project}'\n")
    done = run(*words, folder=tmp_path)
    assert done.code == 0, done
    assert f"in pyproject.toml names {project}, but the code names sqlite:///code.db" in done.err
    file.write_text(f"[tool.tenure]\nurl = '{code}'\n")  # the same, written in another way
    assert run(*words, folder=tmp_path).err == ""


def test_a_tenant_sees_its_own(world: World) -> None:
    words = ("--tenant", "acme")
    run(*words, "enqueue", "shop.greet", url=world.url, folder=world.folder)
    done = run(*words, "stats", "--exact", "--json", url=world.url, folder=world.folder)
    assert [(line["tenant"], line["jobs"]) for line in done.lines if line["tenant"]] == [
        ("acme", 1)
    ]
    assert run(*words, "top", url=world.url, folder=world.folder).code == 0
