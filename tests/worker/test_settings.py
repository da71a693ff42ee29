"""What a worker can be told, and what it refuses, with the fix named."""

from __future__ import annotations

from typing import Any

import pytest

from tenure import Tenure, Worker
from tenure.errors import ConfigError, InvalidInput, InvalidName, OutOfRange
from tenure.worker.settings import WorkerSettings

app = Tenure("sqlite:///never-opened.db")


def test_the_defaults_are_those_of_the_documentation() -> None:
    settings = Worker(app).settings
    assert settings.queues == {"default": 0}
    assert (settings.async_slots, settings.thread_slots) == (100, 8)
    assert settings.process_slots >= 1
    assert (settings.lease_seconds, settings.heartbeat_seconds) == (30.0, 10.0)
    assert (settings.busy_poll_seconds, settings.idle_poll_seconds) == (0.005, 1.0)
    assert (settings.sweep_seconds, settings.drain_seconds) == (1.0, 25.0)


def test_the_queues_of_the_tasks_are_served_unless_others_are_named() -> None:
    shop = Tenure("sqlite:///never-opened.db")
    assert Worker(shop).settings.queues == {"default": 0}

    @shop.task(queue="mail")
    def send() -> None: ...

    @shop.task(queue="gpu")
    def train() -> None: ...

    assert Worker(shop).settings.queues == {"gpu": 0, "mail": 0}
    assert Worker(shop, {"mail": 3}).settings.queues == {"mail": 3}


@pytest.mark.parametrize(
    ("lease", "heartbeat"), [(10.0, 5.0), (10.0, 10.0), (0.5, 10.0), (20.0, 10.0)]
)
def test_two_heartbeats_must_fit_into_a_lease(lease: float, heartbeat: float) -> None:
    with pytest.raises(ConfigError, match=r"make the lease longer or the heartbeat shorter"):
        Worker(app, lease_seconds=lease, heartbeat_seconds=heartbeat)
    Worker(app, lease_seconds=2 * heartbeat + 0.01, heartbeat_seconds=heartbeat)


def test_the_shortest_lease_of_any_queue_counts() -> None:
    with pytest.raises(ConfigError, match=r"\(15 s\)"):
        Worker(app, {"a": 0, "b": 0}, queue_lease_seconds={"b": 15.0})
    with pytest.raises(ConfigError, match="queue_lease_seconds names c, which is not in queues"):
        Worker(app, {"a": 0}, queue_lease_seconds={"c": 60.0})


def test_an_unknown_setting_is_an_error_that_lists_the_known_ones() -> None:
    nonsense: dict[str, Any] = {"lease_secs": 5}
    with pytest.raises(ConfigError, match=r"lease_secs.*lease_seconds"):
        Worker(app, **nonsense)
    with pytest.raises(ConfigError, match="concurrency"):
        app.run_worker(concurrency=5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("queues", "kind"),
    [
        ({}, ConfigError),
        (["a", "b"], ConfigError),
        ("gpu", ConfigError),
        ({"gpu", "default"}, ConfigError),
        ({"": 1}, InvalidName),
        ({"a b": 1}, InvalidName),
        ({1: 1}, InvalidName),
        ({"a": -1}, OutOfRange),
        ({"a": 1.5}, OutOfRange),
        ({"a": True}, OutOfRange),
        ({"a": None}, OutOfRange),
        ({"a": 10**9}, OutOfRange),
    ],
    ids=str(list(range(12))).strip("[]").split(", "),
)
def test_queues_that_make_no_sense(queues: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        Worker(app, queues)


OTHERS = {"queues", "health_file", "log_errors", "log_successes", "until_idle"}
KEEPS = {"keep_succeeded_seconds", "keep_other_seconds"}
OPTIONAL = {"max_jobs", "max_jobs_per_child"}


@pytest.mark.parametrize("name", [f for f in WorkerSettings.__struct_fields__ if f not in OTHERS])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "10", None, True, [1], 10**20])
def test_numbers_that_make_no_sense(name: str, value: object) -> None:
    settings: dict[str, Any] = {name: value}
    if name in KEEPS and (value is None or value == float("inf")):
        Worker(app, **settings)  # as the default says, and for ever
        return
    if value is None and name in OPTIONAL:
        assert getattr(Worker(app, **settings).settings, name) is None
        return
    with pytest.raises(InvalidInput, match=name):
        Worker(app, **settings)


@pytest.mark.parametrize("value", [None, 1, "yes", [True]])
def test_until_idle_is_true_or_false(value: Any) -> None:
    with pytest.raises(ConfigError, match="until_idle"):
        Worker(app, until_idle=value)


@pytest.mark.parametrize("value", [-1, float("nan"), "10", 1, [1]])
@pytest.mark.parametrize("name", ["log_errors", "log_successes"])
def test_settings_of_the_log_that_make_no_sense(name: str, value: object) -> None:
    settings: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"{name} must be one of"):
        Worker(app, **settings)


@pytest.mark.parametrize("file", [-1, 1.5, True, ["health"], b"health"])
def test_health_files_that_make_no_sense(file: Any) -> None:
    with pytest.raises(ConfigError, match="health_file"):
        Worker(app, health_file=file)


@pytest.mark.parametrize("processes", [0, -1, 1.5, True, "2", None, 10**6])
def test_process_counts_that_make_no_sense(processes: Any) -> None:
    with pytest.raises(OutOfRange, match="processes"):
        Worker(app, processes=processes)


@pytest.mark.parametrize("what", [None, "sqlite:///jobs.db", object()])
def test_something_else_than_an_application(what: Any) -> None:
    with pytest.raises(InvalidInput, match="Tenure"):
        Worker(what)


@pytest.mark.parametrize("seconds", [0.0, 1e300, 10**400])
def test_lengths_of_time_that_make_no_sense(seconds: float) -> None:
    with pytest.raises(OutOfRange):
        Worker(app, heartbeat_seconds=seconds)
    with pytest.raises(OutOfRange):
        Worker(app, lease_seconds=seconds)


def test_a_worker_cannot_be_given_a_name() -> None:
    """Each start makes up a name, so that no two workers share one."""
    with pytest.raises(ConfigError, match="unknown worker setting 'name'"):
        Worker(app, name="mine")  # type: ignore[call-arg]
