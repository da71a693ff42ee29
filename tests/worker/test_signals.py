"""Signals to a worker process, and several processes under one supervisor."""

from __future__ import annotations

import os
import re
import signal

import psutil
import pytest

from tenure import State, Tenure
from tests.worker.conftest import Run
from tests.worker.support import Script, ended, eventually, is_gone
from tests.worker.test_handlers import station_job

on_file = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
SLOW = ["slow", "slow_async", "slow_child"]


def started(app: Tenure, script: Script, task: str, seconds: float) -> int:
    """A job of the script that is running now."""
    id = station_job(app, task, seconds=seconds)
    script.wait_for(f"slow {id} attempt 1")
    return id


def signal_until_gone(script: Script, number: signal.Signals) -> None:
    """A second signal counts when the first one was a moment ago."""

    def gone() -> bool:
        script.signal(number)
        return script.process.poll() is not None

    eventually(gone)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_drains(app: Tenure, run_script: Run, number: signal.Signals) -> None:
    """SIGINT is what Ctrl-C sends to a script that runs `app.run_worker()`."""
    script = run_script("station")
    script.wait_for("serves")
    id = started(app, script, "slow_async", 0.5)
    script.signal(number)
    assert script.ends() == 0
    assert "returned" in script.output
    assert "Traceback" not in script.output
    assert app.get(id).state is State.SUCCEEDED


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_exits_at_once_and_loses_nothing(
    app: Tenure, run_script: Run, number: signal.Signals, code: int
) -> None:
    script = run_script("station")
    script.wait_for("serves")
    ids = [started(app, script, task, 60) for task in SLOW]
    script.signal(number)
    script.wait_for("a second Ctrl-C or signal ends it at once, and its jobs run again within ")
    signal_until_gone(script, number)
    assert script.ends(5) == code
    for id in ids:
        assert app.get(id).state is State.RUNNING  # their lease brings them back


@pytest.mark.slow
@on_file
def test_the_same_signal_twice_in_a_moment_is_one(app: Tenure, run_script: Run) -> None:
    """`timeout` sends it to the process and to its group."""
    script = run_script("station")
    script.wait_for("serves")
    id = started(app, script, "slow_async", 0.5)
    script.signal(signal.SIGSTOP)  # both are there when it goes on
    script.signal(signal.SIGTERM)
    script.signal(signal.SIGINT)
    script.signal(signal.SIGCONT)
    assert script.ends() == 0
    assert app.get(id).state is State.SUCCEEDED


@on_file
def test_nohup_is_respected(app: Tenure, run_script: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_TEST_NOHUP", "1")
    script = run_script("station")
    script.wait_for("serves")
    script.signal(signal.SIGHUP)
    assert ended(app, station_job(app, "quick")).state is State.SUCCEEDED
    assert script.process.poll() is None
    assert "draining" not in script.output


@on_file
def test_sigusr1_writes_all_stacks(app: Tenure, run_script: Run) -> None:
    script = run_script("station")
    script.wait_for("serves")
    started(app, script, "slow", 60)
    script.signal(signal.SIGUSR1)
    script.wait_for("Current thread")
    eventually(lambda: re.search(r"station\.py.* in slow", script.output))
    assert script.process.poll() is None


@pytest.mark.slow
def test_children_end_when_their_worker_is_killed(app: Tenure, run_script: Run) -> None:
    """Also one that is busy in Python code, and one that sleeps."""
    script = run_script("station")
    script.wait_for("serves")
    station_job(app, "busy_child")
    started(app, script, "slow_child", 60)
    script.wait_for("busy child")
    children = [one.pid for one in psutil.Process(script.pid).children(recursive=True)]
    assert len(children) == 3  # two handlers, and the watchdog of the worker
    script.signal(signal.SIGKILL)
    script.ends()
    for pid in children:
        eventually(lambda pid=pid: is_gone(pid))  # type: ignore[misc]


# --- several processes ----------------------------------------------------------------------------


def members(script: Script) -> list[psutil.Process]:
    """The worker processes of a supervisor."""
    try:
        found = psutil.Process(script.pid).children()
        return [one for one in found if "tenure.worker.supervisor.supervised" in one.cmdline()]
    except psutil.NoSuchProcess:
        return []


@pytest.mark.slow
def test_processes_work_together_and_drain_together(app: Tenure, run_script: Run) -> None:
    script = run_script("station", "2")
    script.wait_for("serves", 2)
    assert len(members(script)) == 2
    assert len(eventually(lambda: [w for w in [app.workers()] if len(w) == 2])[0]) == 2
    ids = [started(app, script, "slow", 1.0) for _ in range(2)]
    script.signal(signal.SIGTERM)
    assert script.ends() == 0
    assert "returned" in script.output
    for id in ids:
        assert app.get(id).state is State.SUCCEEDED
    # It does not wait long for that.
    assert len(app.workers()) == script.output.count("could not sign off")


@pytest.mark.slow
def test_a_process_that_is_killed_is_replaced_and_its_jobs_come_back(
    app: Tenure, run_script: Run
) -> None:
    script = run_script("station", "2")
    script.wait_for("serves", 2)
    before = {one.pid for one in members(script)}
    id = started(app, script, "slow", 2.0)
    running_on = app.get(id).worker
    assert running_on is not None
    [victim] = [pid for pid in before if f"-{pid}-" in running_on]
    os.kill(victim, signal.SIGKILL)
    script.wait_for("was killed by SIGKILL; a new one starts")
    script.wait_for("serves", 3)
    after = {one.pid for one in members(script)}
    assert len(after) == 2
    assert victim not in after
    job = ended(app, id)
    assert (job.state, job.crashes) == (State.SUCCEEDED, 1)


@pytest.mark.slow
def test_a_second_signal_ends_all_processes_at_once(app: Tenure, run_script: Run) -> None:
    script = run_script("station", "2")
    script.wait_for("serves", 2)
    started(app, script, "slow", 60)
    pids = [one.pid for one in members(script)]
    script.signal(signal.SIGTERM)
    script.wait_for("is draining")
    signal_until_gone(script, signal.SIGTERM)
    assert script.ends(5) == 143
    for pid in pids:
        eventually(lambda pid=pid: is_gone(pid))  # type: ignore[misc]


@on_file
@pytest.mark.slow
def test_a_crash_loop_backs_off(run_script: Run) -> None:
    script = run_script("crashing")
    script.wait_for("a new one starts in 0.8 s", 2)
    script.signal(signal.SIGTERM)
    assert script.ends() == 0
    pauses = [float(p) for p in re.findall(r"a new one starts in ([\d.]+) s", script.output)]
    early = [pause for pause in pauses if pause <= 0.8]  # one process may be ahead of the other
    assert sorted(early) == [0.2, 0.2, 0.4, 0.4, 0.8, 0.8]
    assert "ImportError: nothing works today" in script.output


@on_file
def test_a_crew_that_is_stopped_before_it_starts_returns(run_script: Run) -> None:
    script = run_script("stopped")
    assert script.ends() == 0
    assert "returned" in script.output
