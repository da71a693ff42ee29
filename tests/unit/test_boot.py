"""The name of a boot and the clock of leases, on every system."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from tenure.rules.job import NewJob
from tenure.store import open_store
from tenure.store.sqlite import boot_clock as boot
from tenure.store.sqlite.boot_clock import Clock
from tests.support.stores import START


@pytest.fixture
def no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_text(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", read_text)


@pytest.mark.usefixtures("no_proc")
def test_macos_names_its_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "0D3E-UUID\n", "")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", run)
    assert boot.boot_id.__wrapped__() == "0D3E-UUID"
    assert asked == [["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]]


@pytest.mark.usefixtures("no_proc")
@pytest.mark.parametrize("platform", ["win32", "darwin", "freebsd14"])
def test_a_boot_without_a_name_is_not_given_one(
    monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    def run(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(subprocess, "run", run)
    assert boot.boot_id.__wrapped__() is None


def test_the_boot_clock_needs_no_clock_of_unix(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        monkeypatch.delattr(time, name, raising=False)
    before = time.monotonic_ns() // 1000
    tick = Clock("some boot").read(None)["tick"]
    assert before <= tick <= time.monotonic_ns() // 1000


def test_without_a_name_for_the_boot_a_lease_outlives_a_restart_and_expires_on_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setattr("tenure.store.sqlite.session.boot_id", lambda: None)
    with open_store(url) as store:
        store.enqueue([NewJob(task="a")], now=START)
        store.claim("w1", {"default": 1}, lease_seconds=30, now=START)
    monkeypatch.setattr(boot, "_boot_microseconds", lambda: 0)
    with open_store(url) as store:
        assert store.sweep(now=START + timedelta(seconds=29)).requeued == 0
        assert store.sweep(now=START + timedelta(seconds=31)).requeued == 1
