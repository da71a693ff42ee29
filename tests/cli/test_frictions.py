"""What people type in minute two: options in another place, names of other tools, a wrong queue."""

from __future__ import annotations

import json
import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import patch

import click
import psycopg
import pytest

from tenure.cli import jobs, output
from tenure.cli.main import COMMANDS
from tenure.cli.show import progress_of
from tenure.cli.words import MEANT, MEANT_IN, in_order
from tenure.cli.worker import _queues
from tenure.errors import StoreUnavailable
from tenure.rules.claim import NEEDS
from tenure.rules.codec import encode
from tenure.rules.job import Job, NewJob, Progress, WorkerInfo
from tenure.rules.lifecycle import fail, release, succeed, unknown_task
from tenure.store import Store, open_store
from tenure.store.postgres.errors import translate
from tests.cli.inside import inside
from tests.cli.terminal import Terminal
from tests.cli.world import SHOP
from tests.support.patience import until


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/jobs.db"
    open_store(url).close()
    return url


# --- global options -------------------------------------------------------------------------------


def test_global_options_stand_anywhere(url: str) -> None:
    for words in (
        ("--url", url, "ls"), ("ls", "--url", url), ("ls", f"--url={url}"),
        ("--give-up-seconds", "1", "ls", "--url", url), ("ls", "--url", url, "--limit", "3"),
        ("ls", "--limit", "3", "--give-up-seconds=1", "--url", url),
    ):  # fmt: skip
        ended = inside(*words)
        assert (ended.code, ended.out) == (0, "no jobs\n"), words
    for words in (
        ("--json", "--url", url, "db", "status"), ("db", "--json", "status", "--url", url),
        ("db", "status", "--json", "--url", url), ("--url", url, "--json", "db", "status"),
    ):  # fmt: skip
        ended = inside(*words)
        if words[1] != "--json":
            assert json.loads(ended.out)["engine"] == "SQLite", words
    assert json.loads(inside("--json", "health", "--url", url).out)["healthy"]
    ended = inside("--json", "get", "7", "--url", url)
    assert (ended.code, json.loads(ended.err)["kind"]) == (3, "JobNotFound")


def test_a_global_option_without_its_value_is_named() -> None:
    for words in (("ls", "--url"), ("--url",)):
        ended = inside(*words)
        assert (ended.code, "Option '--url' requires an argument" in ended.err) == (2, True)
    with pytest.raises(click.UsageError):
        in_order(["ls", "--tenant"])


def test_words_keep_their_order_otherwise() -> None:
    assert in_order(["ls", "--limit", "3", "a=b"]) == ["ls", "--limit", "3", "a=b"]
    assert in_order(["--json", "enqueue", "t", "--", "--url"]) == [
        "enqueue", "t", "--json", "--", "--url",
    ]  # fmt: skip
    assert in_order(["--json"]) == []
    assert in_order(["--help"]) == ["--help"]


# --- guesses --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guess", "meant"),
    [
        ("retry", "replay"), ("show", "get"), ("list", "ls"), ("jobs", "ls"), ("delete", "rm"),
        ("migrate", "db migrate"), ("pause", "queues pause"), ("run", "worker"), ("purge", "prune"),
        ("replya", "replay"), ("wokers", "workers"), ("beat", "worker"), ("flower", "top"),
    ],
)  # fmt: skip
def test_a_guess_leads_to_the_command(guess: str, meant: str) -> None:
    ended = inside(guess, "1")
    assert (ended.code, ended.out) == (2, "")
    assert f"no command {guess!r}. Did you mean `tenure {meant}`? See" in ended.err


def test_a_shell_is_elsewhere() -> None:
    ended = inside("shell")
    assert (ended.code, ended.out) == (2, "")
    assert "no command 'shell'. Use `python -i -m MODULE`, with the module of your" in ended.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("ls", "--state", "failed"), "'--state'; write `tenure ls state=failed`; see"),
        (("ls", "--state=failed"), "'--state'; write `tenure ls state=failed`; see"),
        (("ls", "--queue"), "'--queue'; write `tenure ls queue=...`; see"),
        (("cancel", "--task", "a.b"), "'--task'; write `tenure cancel task=a.b`; see"),
        (("worker", "--concurrency", "4"), "'--concurrency'; write --async-slots, --thread-slots"),
        (("worker", "-A", "good:app"), "'-A'; write the application without an option, as in"),
        (("dev", "-Q", "mail"), "'-Q'; write -q; see"),
        (("ls", "--limti", "3"), "Did you mean"),
    ],
)
def test_an_option_of_another_tool_leads_to_the_right_words(
    words: tuple[str, ...], told: str
) -> None:
    ended = inside(*words)
    assert (ended.code, ended.out) == (2, "")
    assert told in ended.err, ended.err


def test_spaces_between_queues_do_not_count() -> None:
    assert _queues(("mail, default=2", " gpu")) == {"mail": 0, "default": 2, "gpu": 0}


def test_a_guess_within_a_group_leads_to_its_command() -> None:
    ended = inside("db", "upgrade")
    assert (ended.code, ended.out) == (2, "")
    assert "no command 'db upgrade'. Did you mean `tenure db migrate`?" in ended.err
    for group, guesses in MEANT_IN.items():
        for meant in guesses.values():
            assert inside(group, meant, "--help").code == 0


def test_the_list_of_workers_is_another_command() -> None:
    ended = inside("worker", "list")
    assert ended.code == 2
    assert "there is no module list; to see the workers, use `tenure workers`" in ended.err


def test_every_guess_leads_to_a_command_that_exists() -> None:
    for guess, meant in MEANT.items():
        assert guess not in COMMANDS
        assert meant.split()[0] in (*COMMANDS, "--version"), meant
        assert inside(*meant.split(), "--help").code == 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("./good.py", "./good.py is a path; write the module: good"),
        ("./good.py:app", "./good.py is a path; write the module: good:app"),
        ("shop/jobs.py", "shop/jobs.py is a path; write the module: shop.jobs"),
        ("/srv/good.py", "/srv/good.py is a path; write the module in the folder /srv: good"),
        (".good", ".good is a relative name; write the whole name of the module: good"),
        (".a:app", ".a is a relative name; write the whole name of the module: a:app"),
        ("../good.py", "../good.py is a path; write the module in the folder ..: good"),
    ],
)
def test_a_path_in_place_of_a_module(given: str, told: str) -> None:
    ended = inside("worker", given)
    assert (ended.code, ended.err) == (2, f"tenure: {told}\n")


# --- tasks that no worker knows ---------------------------------------------------------------


def test_enqueue_says_when_nothing_knows_the_task(url: str) -> None:
    unknown = "no worker that is alive has task mail.sned, and no job of it has run; "
    ended = inside("--url", url, "enqueue", "mail.sned")
    assert (ended.code, ended.out) == (0, "job 1\n")
    again = inside("--url", url, "enqueue", "mail.sned")
    as_json = inside("--url", url, "enqueue", "mail.sned", "--json")
    assert json.loads(as_json.out)["id"] == 3
    for each in (ended, again, as_json):
        assert each.err == f"{unknown}check the name, or give --app to check it\n"
    with open_store(url) as store:
        store.enqueue([NewJob(task="mail.old", queue="old")])
        [lease] = store.claim("w0", {"old": 1})
        store.settle("w0", [succeed(lease.jobs[0])])
        assert inside("--url", url, "enqueue", "mail.old").err == ""  # a worker has known it
        [lease] = store.claim("w0", {"default": 1})
        store.settle("w0", [unknown_task(lease.jobs[0], 60, 600)])
        store.announce(WorkerInfo(name="w1", host="here", pid=1, tasks=("mail.send",)))
    assert inside("--url", url, "enqueue", "mail.sned").err == f"{unknown}did you mean mail.send?\n"
    assert inside("--url", url, "enqueue", "mail.send").err == ""


# --- queues ---------------------------------------------------------------------------------------


def test_pausing_a_queue_that_nothing_uses_says_so(url: str) -> None:
    with open_store(url) as store:
        store.announce(WorkerInfo(name="w1", host="here", pid=1, queues={"default": 0}))
        store.enqueue([NewJob(task="t", queue="mail")])
        for queue in ("default", "mail"):
            ended = inside("--url", url, "queues", "pause", queue)
            assert (ended.code, ended.out, ended.err) == (0, f"queue {queue} is paused\n", "")
        ended = inside("--url", url, "queues", "pause", "defualt")
        assert (ended.code, ended.out) == (0, "queue defualt is paused\n")
        assert ended.err == (
            "queue defualt has no jobs, and no worker serves it; did you mean default? Then run "
            "`tenure queues resume defualt`\n"
        )
        ended = inside("--url", url, "queues", "pause", "nowhere", "--json")
        assert json.loads(ended.out)["used"] is False


# --- progress -------------------------------------------------------------------------------------


def running_job(store: Store, fraction: float, message: str | None = None) -> int:
    """A job that was claimed 100 s ago and has just reported."""
    now = datetime.now(UTC)
    [job] = store.enqueue([NewJob(task="shop.long")], now=now - timedelta(seconds=120))
    [lease] = store.claim("w1", {"default": 1}, lease_seconds=900, now=now - timedelta(seconds=100))
    store.report_progress("w1", [(lease.jobs[0], fraction, message)], now=now)
    return job.id


def test_progress_is_shown_with_rate_and_remaining_time(url: str) -> None:
    with open_store(url) as store:
        id = running_job(store, 0.25, "epoch 3")
        told = "25 %, 15 %/min, 5m left, epoch 3"
        assert f"progress           {told}\n" in inside("--url", url, "get", str(id)).out
        for words in (("ls",), ("ls", "state=running"), ("top", "--once")):
            assert told in inside("--url", url, *words).out, words
        assert "progress" not in inside("--url", url, "ls", "state=failed").out
        seen = json.loads(inside("--url", url, "top", "--json").out)
        assert seen["running"][0]["id"] == id
        assert seen["progress"][str(id)]["fraction"] == 0.25


def test_jobs_without_progress_show_none(url: str) -> None:
    with open_store(url) as store:
        store.enqueue([NewJob(task="t")])
        store.claim("w1", {"default": 1})
        assert "progress" not in inside("--url", url, "ls").out
        assert "progress" not in inside("--url", url, "get", "1").out


def test_the_words_of_progress(url: str) -> None:
    with open_store(url) as store:
        job: Job = store.get(running_job(store, 0.5))
    at = job.claimed_at
    assert at is not None
    assert progress_of(job, None) is None
    assert progress_of(job, Progress()) is None
    assert progress_of(job, Progress(None, "loading", at)) == "loading"
    assert progress_of(job, Progress(0.0, None, at)) == "0 %"
    assert progress_of(job, Progress(1.0, None, at + timedelta(seconds=1))) == "100 %"
    fast = progress_of(job, Progress(0.99, None, at + timedelta(seconds=98)))
    assert fast is not None
    assert fast.startswith("99 %, 1 %/s, ")
    old = progress_of(job, Progress(0.5, "half", at + timedelta(seconds=10)))
    assert old is not None
    assert re.fullmatch(r"50 %, reported (\d+s|2m) ago, half", old), old
    slow = progress_of(job, Progress(0.001, None, at + timedelta(seconds=3600)))
    assert slow is not None
    assert slow.startswith("0 %, 0.1 %/h, ")


def test_a_running_job_does_not_show_why_an_earlier_attempt_ended(url: str) -> None:
    with open_store(url) as store:
        store.enqueue([NewJob(task="t")])
        [lease] = store.claim("w1", {"default": 1})
        store.settle("w1", [release(lease.jobs[0], "shutdown")])
        assert "shutdown" in inside("--url", url, "ls").out
        store.claim("w1", {"default": 1})
        assert "shutdown" not in inside("--url", url, "ls").out
        [other] = store.enqueue([NewJob(task="t")])
        store.cancel(other.id)
        assert inside("--url", url, "ls", "state=cancelled").out.count("cancelled") == 1
        assert inside("--url", url, "timeline", str(other.id)).out.count("cancelled") == 1


def test_the_last_row_of_a_timeline_tells_the_error(url: str) -> None:
    error = encode({"type": "KeyError", "message": "'zz'", "traceback": ""})
    with open_store(url) as store:
        [job] = store.enqueue([NewJob(task="t", max_attempts=1, needs=NEEDS["async"])])
        [lease] = store.claim("w1", {"default": 1})
        store.settle("w1", [fail(lease.jobs[0], error, "error", 1.89e-05)])
        last = inside("--url", url, "timeline", str(job.id)).out.splitlines()[-1]
        assert last.endswith("KeyError: 'zz'")
        shown = inside("--url", url, "get", str(job.id)).out
        assert re.search(r"^duration +less than 1 ms$", shown, re.MULTILINE), shown
        assert re.search(r"^runs +on the event loop$", shown, re.MULTILINE), shown


# --- waiting --------------------------------------------------------------------------------------


def test_enqueue_wait_says_why_the_job_does_not_run(url: str) -> None:
    said = threading.Event()

    def echo(text: str, **where: bool) -> None:
        output.echo(text, **where)
        said.set()

    quick, heard = patch.object(jobs, "WHY_SECONDS", 0.05), patch.object(jobs, "echo", echo)
    with open_store(url) as store, quick, heard:

        def cancel() -> None:
            until(lambda: store.list_jobs().jobs)
            said.wait(600)
            store.cancel(store.list_jobs().jobs[0].id)

        other = threading.Thread(target=cancel)
        other.start()
        ended = inside("--url", url, "enqueue", "shop.greet", "--wait")
        other.join()
        assert ended.code == 1
        assert "waits: in queue default since " in ended.err
        assert "no worker is alive" in ended.err
        assert ended.err.count("waits: ") == 1


@pytest.mark.parametrize("queue", [None, "other"])
def test_enqueue_wait_without_app_tells_of_the_queue_of_the_task(
    url: str, queue: str | None
) -> None:
    hint = "no worker serves this queue: start one that does; or give --app, which uses the task's"
    options = [] if queue is None else ["--queue", queue]
    said = threading.Event()

    def echo(text: str, **where: bool) -> None:
        output.echo(text, **where)
        said.set()

    quick, heard = patch.object(jobs, "WHY_SECONDS", 0.05), patch.object(jobs, "echo", echo)
    with open_store(url) as store, quick, heard:
        store.announce(WorkerInfo(name="w1", host="h", pid=1, queues={"mail": 1}))

        def cancel() -> None:
            said.wait(600)
            store.cancel(store.list_jobs().jobs[0].id)

        other = threading.Thread(target=cancel)
        other.start()
        ended = inside("--url", url, "enqueue", "shop.greet", "--wait", *options)
        other.join()
        assert "no worker serves this queue" in ended.err
        assert (hint in ended.err) is (queue is None)


# --- the database is away -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('connection failed: FATAL: password authentication failed for user "bob"', "the password"),
        ('connection failed: FATAL: database "jobs" does not exist', "create the database"),
        ('connection failed: FATAL: role "bob" does not exist', "create the role"),
        (
            "connection to server at 127.0.0.1, port 1 failed: Connection refused",
            "start the server",
        ),
        ("[Errno -2] Name or service not known", "its name cannot be resolved"),
        ("connection timeout expired", "firewalls"),
        ("FATAL: sorry, too many clients already", "max_connections"),
        ("FATAL: no pg_hba.conf entry for host", "pg_hba.conf"),
        ("fe_sendauth: no password supplied", "PGPASSWORD"),
        ("something else", "check the URL and that the server runs"),
    ],
)
def test_the_hint_fits_the_cause(text: str, hint: str) -> None:
    error = translate(psycopg.OperationalError(text))
    assert isinstance(error, StoreUnavailable)
    assert hint in str(error).split("); ")[-1]


def test_a_server_that_refuses_was_reached() -> None:
    gone = translate(psycopg.OperationalError('FATAL: database "nodb" does not exist'))
    assert str(gone).startswith("PostgreSQL refused the connection (FATAL: database")
    asks = "\n\tIs the server running on that host and accepting TCP/IP connections?"
    down = psycopg.OperationalError(f"connection failed: Connection refused{asks}")
    said = str(translate(down))
    assert said == (
        "PostgreSQL cannot be reached (connection failed: Connection refused); start the server, "
        "or check the host and the port in the URL"
    )


# --- copy -----------------------------------------------------------------------------------------


def test_a_second_copy_says_that_there_is_nothing_new(url: str, tmp_path: Path) -> None:
    with open_store(url) as store:
        store.enqueue([NewJob(task="t")])
    words = ("copy", "--yes", "--from", url, "--to", f"sqlite:///{tmp_path}/other.db")
    first = "copied 1 live and 0 finished jobs; both databases agree\n"
    assert inside(*words).out == first
    assert inside(*words).out == "nothing new to copy; both databases agree\n"
    missing = inside("copy", "--yes", "--from", f"sqlite:///{tmp_path}/nope.db", *words[-2:])
    assert missing.err.endswith("nope.db; check --from\n")


# --- top ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_q_quits_top_and_the_terminal_is_as_before(url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    with Terminal("top", "--interval", "600", url=url, folder=tmp_path) as terminal:
        terminal.wait_for("no live jobs")
        terminal.type("x")
        terminal.wait_for("no live jobs", times=2)
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.text.endswith("\x1b[?25h\x1b[?1049l")
