"""`enqueue --wait`, and the exit codes of `health` and `doctor` when all is not well."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cli.terminal import run, start
from tests.cli.world import World, announce

pytestmark = pytest.mark.slow  # processes, one per command


@pytest.fixture
def worker(world: World) -> Iterator[None]:
    """A worker at work."""
    process = start(
        "worker", "shop:app", "--log-level", "ERROR", url=world.url, folder=world.folder
    )
    yield
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.usefixtures("worker")
def test_waiting_for_a_job(world: World) -> None:
    """The result on stdout; a failure is the exit code 1 and one line."""
    greet = ("enqueue", "shop.greet", "--args", '{"name": "Zoë"}', "--wait")
    done = run(*greet, url=world.url, folder=world.folder)
    assert (done.code, done.out, done.err) == (0, '"Hello, Zoë!"\n', "")
    send = ("enqueue", "shop.send", "--app", "shop", "--args", '{"to": "eve"}', "--wait")
    failed = run(*send, url=world.url, folder=world.folder)
    assert (failed.code, failed.out) == (1, "")
    assert failed.err.endswith(" is failed: ValueError: no such address: eve\n")
    told = run(*send, "--json", url=world.url, folder=world.folder)
    assert told.code == 1
    assert told.lines == [world.stored(told.lines[0]["id"])]
    assert (told.error["kind"], told.error["exit_code"]) == ("JobFailed", 1)


def test_ill_health_has_a_reason_and_a_code(world: World) -> None:
    announce(world)
    for words, reason in (
        (("--workers", "2"), "1 workers are alive; at least 2 are needed"),
        (("--max-age-seconds", "0"), "queue default has had a job ready for"),
        (("--file", "heart"), "heart: No such file or directory; does the worker run with"),
    ):
        done = run("health", *words, "--json", url=world.url, folder=world.folder)
        assert (done.code, done.err) == (1, "")
        [line] = done.lines
        assert line["healthy"] is False
        assert line["problem"].startswith(reason)


def test_a_fresh_heart_is_healthy_without_a_database(world: World) -> None:
    (world.folder / "heart").touch()
    done = run("health", "--file", "heart", folder=world.folder)
    assert (done.code, done.out) == (0, "healthy\n")


def test_wake_ups_that_are_off_are_not_an_illness(pg_world: World) -> None:
    url = f"{pg_world.url}&pooler=transaction"
    done = run("doctor", "--json", url=url, folder=pg_world.folder)
    assert done.code == 0, done
    [line] = [line for line in done.lines if line["check"] == "wake-ups"]
    assert line["text"].startswith("off")
    assert json.loads(done.out.splitlines()[0])["check"] == "tenure"
