"""`isolation="process"`: a child can be killed, and that costs no more than its own attempt."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from tenure import Call, Job, State, Tenure
from tenure.worker.children.messages import Ended
from tenure.worker.children.minder import Children
from tenure.worker.children.process import ChildProcess, Watchdog
from tenure.worker.leases import LeasedJob
from tests.support.plain import Plain
from tests.worker import isolated
from tests.worker.support import (
    PATIENCE_SECONDS,
    Lines,
    ended,
    eventually,
    file_numbers,
    is_gone,
    kinds,
    story,
    working,
)

on_file = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
"""For what has nothing to do with the store."""


def error_of(job: Job) -> dict[str, str]:
    assert job.error is not None
    return job.error.as_dict()


@pytest.mark.slow
@on_file
def test_a_warm_child_serves_one_job_after_the_other(children_app: Tenure) -> None:
    with working(children_app, process_slots=1):
        first = isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
        second = isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
    assert first == second != os.getpid()
    eventually(lambda: is_gone(first))  # it ends with its worker


@on_file
def test_a_child_leads_a_session_of_its_own(children_app: Tenure) -> None:
    with working(children_app):
        pid, group, session = isolated.group.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
    assert pid == group == session


@pytest.mark.slow
def test_coroutines_run_in_children_too(children_app: Tenure) -> None:
    with working(children_app, process_slots=1):
        handle = isolated.async_pid.enqueue()
        pid, id = handle.wait(timeout_seconds=PATIENCE_SECONDS)
        assert id == handle.id
        assert pid == isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)


@pytest.mark.slow
@on_file
def test_several_children_work_at_the_same_time(children_app: Tenure) -> None:
    with working(children_app, process_slots=2):
        handles = [isolated.sleeps.enqueue(0.5) for _ in range(2)]
        pids = [handle.wait(timeout_seconds=PATIENCE_SECONDS) for handle in handles]
    assert len(set(pids)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (isolated.exit_now.call(1), "exit 1"),
        (isolated.exit_now.call(0), "exit 0"),
        (isolated.segfault.call(), "exit 139 (SIGSEGV)"),
        (isolated.abort.call(), "exit 134 (SIGABRT)"),
        (isolated.killed.call(), "exit 137 (SIGKILL; perhaps the system ran out of memory)"),
        (isolated.signalled.call(40), "exit 168 (signal 40)"),
    ],
    ids=["os._exit(1)", "os._exit(0)", "segfault", "abort", "kill", "nameless"],
)
def test_a_child_that_dies_costs_one_attempt_with_the_reason_on_record(
    children_app: Tenure, call: Call[Any], reason: str
) -> None:
    """Exit by signal, by os._exit, by the killer of memory hogs."""
    with working(children_app, process_slots=1):
        [handle, sibling] = children_app.enqueue_many([call, isolated.pid.call()])
        job = ended(children_app, handle.id)
        assert ended(children_app, sibling.id).state is State.SUCCEEDED
        assert ended(children_app, sibling.id).attempts == 1
    assert (job.state, job.attempts, job.crashes) == (State.FAILED, 2, 0)
    assert job.reason == reason
    assert error_of(job)["type"] == "tenure.errors.ChildDied"
    assert reason in error_of(job)["message"]
    [retried] = [event for event in story(children_app, handle.id) if event.kind == "retried"]
    assert reason in (retried.detail or "")


@pytest.mark.slow
@on_file
def test_an_error_of_the_minder_ends_the_attempt_and_neither_thread_nor_slot(
    children_app: Tenure, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    def broken(_: ChildProcess) -> str:
        raise ValueError("no words for this")

    with working(children_app, process_slots=1):
        with monkeypatch.context() as patch:
            patch.setattr(ChildProcess, "reason", broken)
            job = ended(children_app, isolated.exit_now.enqueue(1).id)
        assert isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
    assert (job.state, job.attempts) == (State.FAILED, 2)
    assert error_of(job)["message"] == "no words for this"
    assert lines.with_text(f"the worker failed at job {job.id} of {job.task}; it continues")


@pytest.mark.slow
@on_file
def test_a_memory_limit_costs_one_attempt(children_app: Tenure) -> None:
    """Here the child has a limit and lives to tell."""
    with working(children_app, process_slots=1):
        handle = isolated.hog.enqueue()
        job = ended(children_app, handle.id)
        assert isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
    assert (job.state, job.attempts) == (State.FAILED, 2)
    assert error_of(job)["type"] == "MemoryError"


@on_file
def test_whatever_a_handler_raises_is_a_failure_and_the_child_lives(children_app: Tenure) -> None:
    with working(children_app, process_slots=1):
        before = isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
        jobs = {
            name: ended(children_app, isolated.raises.enqueue(name).id) for name in isolated.RAISED
        }
        after = isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
    for name, job in jobs.items():
        assert (job.state, job.attempts, job.crashes) == (State.FAILED, 1, 0), name
        assert error_of(job)["type"].endswith(name)
        assert error_of(job)["message"] == "raised by a handler"
    assert before == after


@pytest.mark.slow
@on_file
def test_after_a_death_there_is_a_new_child(children_app: Tenure) -> None:
    with working(children_app, process_slots=1):
        before = isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
        ended(children_app, isolated.killed.enqueue().id)
        after = isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
    assert before != after


@pytest.mark.slow
def test_output_is_kept_with_a_failed_attempt(children_app: Tenure) -> None:
    with working(children_app, process_slots=1):
        raised = ended(children_app, isolated.fail.enqueue("hello there").id)
        died = ended(children_app, isolated.say_and_die.enqueue("last words").id)
        isolated.say_and_succeed.enqueue("of no interest").wait(timeout_seconds=PATIENCE_SECONDS)
        later = ended(children_app, isolated.fail.enqueue("again").id)
    assert "out: hello there" in error_of(raised)["output"]
    assert "err: hello there" in error_of(raised)["output"]
    assert error_of(died)["output"] == "last words\n"
    assert "again" in error_of(later)["output"]
    assert "of no interest" not in error_of(later)["output"]


@pytest.mark.slow
@on_file
def test_of_much_output_the_end_is_kept_and_no_more(children_app: Tenure) -> None:
    with working(children_app, process_slots=1):
        isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
        before = psutil.Process().memory_info().rss
        job = ended(children_app, isolated.pour.enqueue(64).id)
        grown = psutil.Process().memory_info().rss - before
    output = error_of(job)["output"]
    assert output.endswith("the end\n")
    assert len(output) <= 8192
    assert grown < 32 * 2**20


@pytest.mark.slow
@on_file
def test_endless_output_does_not_keep_a_child_alive(children_app: Tenure) -> None:
    with working(children_app, process_slots=1):
        job = ended(children_app, isolated.pour_for_ever.enqueue().id)
    assert (job.state, job.reason) == (State.FAILED, "timeout")


@pytest.mark.slow
@on_file
def test_a_child_without_output_is_minded_without_haste(children_app: Tenure) -> None:
    """Closed pipes are always ready to be read: who waits for them must not spin."""
    with working(children_app, process_slots=1):
        isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
        before = sum(psutil.Process().cpu_times()[:2])
        job = ended(children_app, isolated.close_output.enqueue(1.0).id)
        used = sum(psutil.Process().cpu_times()[:2]) - before
    assert job.state is State.SUCCEEDED
    assert used < 0.5


@pytest.mark.slow
@on_file
def test_a_handler_may_close_its_streams(children_app: Tenure) -> None:
    with working(children_app, process_slots=1):
        handle = isolated.close_streams.enqueue()
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == "closed"
        assert isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)


@pytest.mark.slow
@on_file
def test_a_handler_that_closes_the_line_to_the_worker_loses_its_child(
    children_app: Tenure,
) -> None:
    with working(children_app, process_slots=1):
        job = ended(children_app, isolated.close_everything.enqueue(0.1).id)
        assert isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
    assert (job.state, job.reason) == (State.FAILED, "exit 1")
    assert "Bad file descriptor" in error_of(job)["output"]


@pytest.mark.slow
def test_progress_travels(children_app: Tenure, tmp_path: Path) -> None:
    with working(children_app, process_slots=1):
        handle = isolated.tells.enqueue(60)
        seen = eventually(lambda: children_app.progress(handle.id).message)
        assert seen == "a quarter"
        assert children_app.progress(handle.id).fraction == 0.25
        children_app.cancel(handle.id)
        assert ended(children_app, handle.id).state is State.CANCELLED
    assert file_numbers(tmp_path / "started")


@on_file
def test_what_a_thread_of_an_earlier_job_says_is_not_said_of_the_next(
    children_app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    minded: list[LeasedJob] = []
    mind = Children._mind

    def noted(minder: Children, child: ChildProcess, leased: LeasedJob) -> Ended | None:
        minded.append(leased)
        return mind(minder, child, leased)

    monkeypatch.setattr(Children, "_mind", noted)
    with working(children_app, process_slots=1, lease_seconds=90, heartbeat_seconds=40):
        pid = isolated.leaves_a_thread.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
        handle = isolated.lets_it_speak.enqueue()
        job = ended(children_app, handle.id)
    assert (job.state, job.result_json) == (
        State.SUCCEEDED,
        str(pid),
    )  # it has not completed itself
    assert minded[-1].progress == (0.5, "of the second job")


@pytest.mark.slow
@on_file
def test_a_flood_of_progress_does_no_harm(children_app: Tenure) -> None:
    with working(children_app, process_slots=1):
        handle = isolated.babbles.enqueue(20_000)
        assert ended(children_app, handle.id).state is State.SUCCEEDED


@pytest.mark.slow
@on_file
def test_endless_progress_does_not_keep_a_child_alive(children_app: Tenure) -> None:
    with working(children_app, process_slots=1):
        job = ended(children_app, isolated.babbles_for_ever.enqueue().id)
    assert (job.state, job.reason) == (State.FAILED, "timeout")


@pytest.mark.slow
def test_checkpoints_survive_the_deaths_of_children(children_app: Tenure) -> None:
    with working(children_app, process_slots=1):
        handle = isolated.remembers.enqueue()
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "state", "rows"),
    [("return", State.SUCCEEDED, 1), ("roll back", State.FAILED, 0), ("die", State.SUCCEEDED, 1)],
)
def test_a_job_completes_itself_inside_a_child(
    shared_app: Tenure, lines: Lines, ending: str, state: State, rows: int
) -> None:
    shared_app.count_live()  # the file is there
    isolated.make_ledger(shared_app.url)
    with working(shared_app, process_slots=1):
        job = ended(shared_app, isolated.completes.enqueue(ending).id)
    assert job.state is state
    assert job.result_json == ('"from inside"' if rows else None)
    with Plain(shared_app.url) as plain:
        assert plain.one("select count(*) from ledger") == rows
    assert not lines.with_text("retried")


@pytest.mark.slow
def test_a_job_that_completed_itself_is_done_even_when_it_must_be_killed_after_that(
    shared_app: Tenure, tmp_path: Path, lines: Lines
) -> None:
    shared_app.count_live()
    isolated.make_ledger(shared_app.url)
    with working(shared_app, process_slots=1):
        handle = isolated.completes.options(timeout_seconds=3).enqueue("hang")
        job = ended(shared_app, handle.id)
        [pid] = eventually(lambda: file_numbers(tmp_path / "started"))
        eventually(lambda: is_gone(pid))
    assert (job.state, job.result_json) == (State.SUCCEEDED, '"from inside"')
    assert not lines.with_text("retried")
    assert lines.with_text("failed after it had completed itself")


@pytest.mark.slow
@on_file
@pytest.mark.parametrize("what", ["object", "nan", "lock"])
def test_nonsense_fails_in_words(children_app: Tenure, what: str) -> None:
    with working(children_app, process_slots=1):
        job = ended(children_app, isolated.returns_nonsense.enqueue(what).id)
    assert (job.state, job.reason) == (State.FAILED, "the result cannot be stored")


@pytest.mark.slow
def test_answers_that_are_not_results(children_app: Tenure) -> None:
    with working(children_app, process_slots=1):
        again = isolated.answers.enqueue("retry")
        assert again.wait(timeout_seconds=PATIENCE_SECONDS) == "second"
        assert ended(children_app, isolated.answers.enqueue("skip").id).state is State.SKIPPED
        cancelled = ended(children_app, isolated.answers.enqueue("cancel").id)
        assert (cancelled.state, cancelled.reason) == (State.CANCELLED, "superseded")
        later = isolated.answers.enqueue("snooze")
        eventually(lambda: children_app.get(later.id).state is State.SCHEDULED)
        assert children_app.get(later.id).reason == "not now"


@on_file
def test_a_fork_that_comes_back_says_nothing(children_app: Tenure, tmp_path: Path) -> None:
    """The fork's answer would be taken for that of the next job."""
    with working(children_app, process_slots=1):
        first = isolated.forks.enqueue("forked")
        pid = first.wait(timeout_seconds=PATIENCE_SECONDS)
        assert [pid] == file_numbers(tmp_path / "forked")
        numbers = [isolated.counts.enqueue(n) for n in range(5)]
        for n, handle in enumerate(numbers):
            assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == n
    assert file_numbers(tmp_path / "counted") == [0, 1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_killed_child_is_not_found_before_its_time(
    children_app: Tenure, tmp_path: Path, number: signal.Signals
) -> None:
    """A signal from elsewhere, such as a service manager that stops all processes of a service:

    the handler goes on, as the worker itself would; its child serves no other job.
    """
    with working(children_app, process_slots=1):
        handle = isolated.sleeps.enqueue(1.0)
        [pid] = eventually(lambda: file_numbers(tmp_path / "started"))
        os.kill(pid, number)
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == pid
        assert ended(children_app, handle.id).attempts == 1
        eventually(lambda: is_gone(pid))
        assert isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS) != pid


@on_file
def test_a_handler_can_interrupt_what_it_has_started(children_app: Tenure) -> None:
    """A signal that is ignored would be ignored by every program that the child starts."""
    with working(children_app, process_slots=1):
        handle = isolated.interrupts_a_tool.enqueue()
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) == -signal.SIGINT


@pytest.mark.slow
@on_file
def test_an_idle_child_that_is_terminated_is_replaced(children_app: Tenure) -> None:
    with working(children_app, process_slots=1):
        pid = isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: is_gone(pid))
        handle = isolated.pid.enqueue()
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) != pid
        assert kinds(children_app, handle.id).count("retried") == 0


@pytest.fixture
def many_files() -> Iterator[None]:
    """What is opened from here on has a high number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    with Path(os.devnull).open() as file, ExitStack() as ends:
        ends.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        taken = -1
        while taken < 1024:
            taken = os.dup(file.fileno())
            ends.callback(os.close, taken)
        yield


@pytest.mark.slow
@on_file
@pytest.mark.usefixtures("many_files")
def test_a_worker_with_many_open_files_sees_the_death_of_a_child(children_app: Tenure) -> None:
    with working(children_app, process_slots=1):
        pid = isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: is_gone(pid))
        handle = isolated.pid.enqueue()
        assert handle.wait(timeout_seconds=PATIENCE_SECONDS) != pid
    assert kinds(children_app, handle.id).count("released") == 0


@on_file
@pytest.mark.slow
def test_fifty_deaths_leave_nothing_behind(children_app: Tenure, tmp_path: Path) -> None:
    me = psutil.Process()

    def children() -> list[psutil.Process]:
        return [one for one in me.children() if "tenure.worker.children.child" in one.cmdline()]

    with working(children_app, process_slots=2):
        isolated.pid.enqueue().wait(timeout_seconds=PATIENCE_SECONDS)
        threads, descriptors = me.num_threads(), me.num_fds()
        calls = [isolated.exit_now.options(max_attempts=1).call(n % 3) for n in range(50)]
        for handle in children_app.enqueue_many(calls):
            assert ended(children_app, handle.id).state is State.FAILED
        assert len(file_numbers(tmp_path / "attempts")) == 50
        assert me.num_fds() <= descriptors + 6
        assert me.num_threads() <= threads + 3
        assert len(children()) <= 2
    assert not children()


@on_file
def test_a_handler_that_checks_is_told_of_its_timeout_not_of_a_shutdown(
    children_app: Tenure,
) -> None:
    with working(children_app):
        job = ended(children_app, isolated.checks_for_ever.enqueue().id)
    assert (job.state, job.reason) == (State.FAILED, "timeout")


def test_a_fork_of_the_worker_does_not_keep_its_watchdog() -> None:
    """The fork has a copy of the pipe whose end tells the watchdog of the worker's end."""
    watchdog = Watchdog()
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    try:
        watchdog.started(child.pid, "a mark")
        fork.start()
        watchdog.ended(child.pid)
        closing = threading.Thread(target=watchdog.close, daemon=True)
        closing.start()
        closing.join(PATIENCE_SECONDS)
        assert not closing.is_alive()
    finally:
        fork.kill()
        child.kill()
        child.wait()
