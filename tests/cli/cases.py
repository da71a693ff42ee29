"""Every command, once in a terminal and once as --json. A test looks that none is missing.

Words that begin with % are names of jobs in the world: %queued is the id of the queued one.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from tenure.benchmark.figures import UNITS
from tenure.rules.codec import encode
from tenure.rules.job import NewJob, NewStep, State, Unique, Until
from tenure.rules.lifecycle import fail, succeed
from tenure.store import open_store
from tenure.store.migrate import VERSION
from tests.cli.terminal import CTRL_C, PATIENCE_SECONDS, Terminal, run, start
from tests.cli.world import ERROR, World, announce, places
from tests.support.counting import counted
from tests.worker.support import eventually

Act = Callable[[World], None]
Look = Callable[[list[Any], World], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One command, used in both ways."""

    in_terminal: Act
    as_json: Act


def words_in(words: Sequence[str], world: World) -> list[str]:
    """The words with the names of jobs replaced by their ids."""
    return [str(getattr(world, w[1:])) if w.startswith("%") else w for w in words]


def nothing(_world: World) -> None:
    """No preparation is needed."""


def in_turn(*acts: Act) -> Act:
    """One after the other."""

    def act(world: World) -> None:
        for each in acts:
            each(world)

    return act


def shows(
    *words: str, texts: Sequence[str], answer: str = "", before: Act = nothing, after: Act = nothing
) -> Act:
    """In a terminal: the command shows these texts, asks if it must, and exits with 0."""

    def act(world: World) -> None:
        before(world)
        with Terminal(*words_in(words, world), url=world.url, folder=world.folder) as terminal:
            if answer:
                terminal.wait_for("[y/N]")
                terminal.type(answer)
            assert terminal.end() == 0, terminal.text
        for text in words_in(texts, world):
            assert text in terminal.text, f"no {text!r} in:\n{terminal.text}"
        after(world)

    return act


def tells(*words: str, look: Look, before: Act = nothing) -> Act:
    """With --json and pipes: what it writes is compared with what the database holds."""

    def act(world: World) -> None:
        before(world)
        done = run(*words_in(words, world), "--json", url=world.url, folder=world.folder)
        assert (done.code, done.err) == (0, ""), done
        look(done.lines, world)

    return act


def is_(name: str, state: State) -> Act:
    """Afterwards this job is in that state."""

    def act(world: World) -> None:
        assert world.state(getattr(world, name)) is state

    return act


def changes(name: str, state: State) -> Look:
    """The command says that it changed one job, and the database says so, too."""

    def look(lines: list[Any], world: World) -> None:
        assert lines == [{"id": getattr(world, name), "changed": True}]
        assert world.state(getattr(world, name)) is state

    return look


def _work_in_terminal(world: World, command: str = "worker") -> None:
    with Terminal(command, "shop:app", url=world.url, folder=world.folder) as terminal:
        terminal.wait_for("serves default, mail")
        eventually(lambda: world.state(world.queued) is State.SUCCEEDED)
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.text
    assert "stopped" in terminal.text
    assert "Traceback" not in terminal.text


def _work_as_json(world: World, command: str = "worker") -> None:
    process = start(command, "shop", "--json", url=world.url, folder=world.folder)
    try:
        eventually(lambda: world.state(world.queued) is State.SUCCEEDED)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, err
    lines = [json.loads(line) for line in err.splitlines()]
    assert {"at", "level", "logger", "message"} <= set(lines[0])
    assert any("serves default, mail" in line["message"] for line in lines)


def _enqueued(lines: list[Any], world: World) -> None:
    [line] = lines
    assert line == {
        "id": line["id"], "created": True, "same_args": True, "gone": False, "replaced": False,
    }  # fmt: skip
    job = world.job(line["id"])
    assert (job.task, job.args_json, job.queue, job.priority) == (
        "shop.send",
        '{"to":"me"}',
        "mail",
        -5,
    )
    assert (job.max_attempts, job.unique_key) == (1, "welcome")


def _job_of_shop(world: World) -> None:
    with open_store(world.url) as store:
        [job] = store.list_jobs(limit=1).jobs
    assert (job.task, job.args_json) == ("shop.greet", '{"name":"Zoë"}')


def _all_jobs(lines: list[Any], world: World) -> None:
    assert [line["id"] for line in lines] == sorted(world.ids, reverse=True)
    assert lines == [world.stored(line["id"]) for line in lines]


def _one(name: str) -> Look:
    def look(lines: list[Any], world: World) -> None:
        assert lines == [world.stored(getattr(world, name))]

    return look


def _why(lines: list[Any], world: World) -> None:
    assert lines == [{"id": world.held, "why": lines[0]["why"]}]
    assert "wait for Eve" in lines[0]["why"]


def _story(lines: list[Any], world: World) -> None:
    with open_store(world.url) as store:
        story = store.timeline(world.failed)
    assert [(line["kind"], line["token"], line["worker"]) for line in lines] == [
        (event.kind, event.token, event.worker) for event in story
    ]
    assert [datetime.fromisoformat(line["at"]) for line in lines] == [event.at for event in story]


def _attempts(lines: list[Any], world: World) -> None:
    with open_store(world.url) as store:
        listed = store.attempts(world.failed)
    assert lines == [attempt.as_dict() for attempt in listed]
    assert [line["outcome"] for line in lines] == ["failed"]
    assert lines[0]["error"]["type"] == "ValueError"


def _with_steps(world: World) -> None:
    """The queued job has taken two steps, and failed."""
    with open_store(world.url) as store:
        claimed = next(
            job for lease in store.claim("w-1", {"default": 10}) for job in lease.jobs
            if job.id == world.queued
        )  # fmt: skip
        store.record_step("w-1", claimed, NewStep("parse", "Parser.run", encode({"pages": 3})))
        store.record_step("w-1", claimed, NewStep("send", "send", encode(None)))
        store.settle("w-1", [fail(claimed, encode(ERROR))], done_leases=[claimed.lease_id])


def _steps(lines: list[Any], world: World) -> None:
    with open_store(world.url) as store:
        recorded = store.steps(world.queued)
    assert [(line["name"], line["token"], line["function"], line["result"]) for line in lines] == [
        ("parse", 1, "Parser.run", {"pages": 3}), ("send", 1, "send", None),
    ]  # fmt: skip
    assert [datetime.fromisoformat(line["recorded_at"]) for line in lines] == [
        step.recorded_at for step in recorded
    ]


def _errors(lines: list[Any], world: World) -> None:
    latest = world.job(world.failed_too)
    assert latest.finished_at is not None
    [line] = lines
    assert datetime.fromisoformat(line.pop("latest_at")) == latest.finished_at
    assert line == {
        "jobs": 2, "task": "shop.send", "error": "ValueError: no such address: bob",
        "latest": world.failed_too,
    }  # fmt: skip


def _moved(lines: list[Any], world: World) -> None:
    assert lines == [{"id": world.queued, "changed": True}]
    job = world.job(world.queued)
    assert (job.queue, job.priority) == ("vip", -7)


def _removed(lines: list[Any], world: World) -> None:
    assert lines == [{"id": id, "changed": True} for id in (world.failed, world.failed_too)]
    _failed_are_gone(world)


def _failed_are_gone(world: World) -> None:
    with open_store(world.url) as store:
        left = {job.id for job in store.list_jobs().jobs}
    assert left == world.ids - {world.failed, world.failed_too}


def _held(world: World) -> None:
    assert world.job(world.queued).held


def _not_held(world: World) -> None:
    assert not world.job(world.held).held


def _queues(lines: list[Any], _world: World) -> None:
    by_name = {line["queue"]: line for line in lines}
    assert set(by_name) == {"default", "mail"}
    default = by_name["default"]
    assert [default[state] for state in ("waiting", "scheduled", "queued", "running")] == [
        1,
        1,
        2,
        0,
    ]
    assert default["oldest_seconds"] >= 0
    assert default["paused"] is None
    assert by_name["mail"]["paused"] == "the post is closed"


def _pause_mail(world: World) -> None:
    with open_store(world.url) as store:
        store.pause("mail", reason="the post is closed")


def _paused(world: World) -> list[tuple[str, str | None]]:
    with open_store(world.url) as store:
        return [(queue.name, queue.reason) for queue in store.paused_queues()]


def _mail_is_paused(world: World) -> None:
    assert _paused(world) == [("mail", "the post is closed")]


def _nothing_is_paused(world: World) -> None:
    assert _paused(world) == []


def _says_paused(lines: list[Any], world: World) -> None:
    assert lines == [
        {"queue": "mail", "paused": True, "reason": "the post is closed", "used": False}
    ]
    _mail_is_paused(world)


def _says_resumed(lines: list[Any], world: World) -> None:
    assert lines == [{"queue": "mail", "paused": False, "changed": True}]
    _nothing_is_paused(world)


def _workers(lines: list[Any], _world: World) -> None:
    [line] = lines
    assert (line["name"], line["host"], line["pid"], line["alive"]) == (
        "w-1", "host.example", 42, True,
    )  # fmt: skip
    assert line["queues"] == {"default": 4, "mail": 0}
    assert (line["running"], line["counts"]) == (0, {"stuck": 1})


def _counted(world: World) -> None:
    outcomes = ("succeeded", "succeeded", "failed", "retried")
    rows = counted(*[("mail", "shop.send", outcome, 0.07, 2.0) for outcome in outcomes])
    with open_store(world.url) as store:
        store.add_statistics("w", rows, at=datetime.now(UTC))
        store.sample_depth()


def _statistics(lines: list[Any], _world: World) -> None:
    [mail] = [line for line in lines if line["queue"] == "mail"]
    assert mail["counts"] == {"succeeded": 2, "failed": 1, "retried": 1}
    assert (mail["finished"], mail["run"]["count"]) == (3, 4)
    assert 0.05 < mail["wait"]["p50"] <= 0.1


def _stats(lines: list[Any], _world: World) -> None:
    counts = {(line["queue"], line["task"], line["state"]): line["jobs"] for line in lines}
    assert counts == {
        ("default", "shop.greet", "succeeded"): 1, ("default", "shop.greet", "cancelled"): 1,
        ("default", "shop.greet", "queued"): 2, ("default", "shop.greet", "scheduled"): 1,
        ("default", "shop.long", "waiting"): 1, ("mail", "shop.send", "failed"): 2,
    }  # fmt: skip


def _top_in_terminal(world: World) -> None:
    announce(world)
    words = ("top", "--interval", "0.1")
    with Terminal(*words, url=world.url, folder=world.folder) as terminal:
        terminal.wait_for("latest failures", times=3)  # it repaints
        terminal.type(CTRL_C)
        assert terminal.end() == 0, terminal.text
    for text in ("1 worker alive", "w-1", "default", "no such address: bob"):
        assert text in terminal.text
    assert terminal.text.count("\x1b[?1049h") == terminal.text.count("\x1b[?1049l") == 1
    assert terminal.text.rstrip().endswith("\x1b[?25h\x1b[?1049l")
    assert "interrupted" not in terminal.text


def _snapshot(lines: list[Any], world: World) -> None:
    [seen] = lines
    assert [queue["queue"] for queue in seen["queues"]] == ["default"]
    assert [worker["name"] for worker in seen["workers"]] == ["w-1"]
    assert seen["failures"] == [world.stored(id) for id in (world.failed_too, world.failed)]
    finished = seen["finished"]
    assert seen["per_second"] == round(sum(finished.values()) / 10, 1)
    assert set(finished) <= {"succeeded", "failed", "cancelled"}


def _migrated(lines: list[Any], world: World) -> None:
    [line] = lines
    assert line["schema_version"] == VERSION
    assert line["database"] == world.url


def _status(lines: list[Any], world: World) -> None:
    with open_store(world.url) as store:
        about = store.about()
    [line] = lines
    now = datetime.fromisoformat(line.pop("now"))
    assert abs((now - datetime.now(UTC)).total_seconds()) < PATIENCE_SECONDS
    assert line == {
        "database": world.url, "engine": about.engine, "engine_version": about.engine_version,
        "schema_version": about.schema_version, "min_code": about.min_code,
        "code_version": VERSION,
    }  # fmt: skip


def _scripts(lines: list[Any], _world: World) -> None:
    assert [line["version"] for line in lines] == list(range(1, VERSION + 1))
    assert all("create table" in line["sql"] for line in lines)


def _copy_words(world: World) -> list[str]:
    return ["copy", "--from", world.url, "--to", f"sqlite:///{world.folder}/target.db"]


def _same_in_target(world: World) -> None:
    with open_store(f"sqlite:///{world.folder}/target.db") as target, open_store(world.url) as old:
        assert target.list_jobs().jobs == old.list_jobs().jobs


def _copy_in_terminal(world: World) -> None:
    texts = ["Copy 8 jobs?", "copied 4 live and 4 finished jobs"]
    shows(*_copy_words(world), texts=texts, answer="y\n", after=_same_in_target)(world)


def _copy_as_json(world: World) -> None:
    def look(lines: list[Any], _world: World) -> None:
        assert lines == [{"live": 4, "finished": 4}]

    tells(*_copy_words(world), "--yes", look=look)(world)
    _same_in_target(world)


def _take_key(world: World) -> None:
    """A finished job has the key for ever."""
    unique = Unique(key="k", until=Until.FOREVER)
    with open_store(world.url) as store:
        store.enqueue([NewJob(task="shop.greet", unique=unique, queue="keys")])
        [lease] = store.claim("w-1", {"keys": 1})
        [job] = lease.jobs
        store.settle("w-1", [succeed(job)], done_leases=[lease.id])


def _key_holder(lines: list[Any], world: World) -> None:
    [line] = lines
    assert line == world.stored(line["id"])
    assert line["unique_key"] == "k"


def _key_freed(lines: list[Any], world: World) -> None:
    assert lines == [{"scope": "shop.greet", "key": "k", "freed": True}]
    with open_store(world.url) as store:
        assert not store.free_key("shop.greet", "k")


def _follow(world: World) -> None:
    """A reader, and a job that has ended since."""
    with open_store(world.url) as store:
        store.add_reader("bills")
        [added] = store.enqueue([NewJob(task="shop.greet", queue="fed")])
        store.cancel(added.id, reason="too late")


def _reader_added(lines: list[Any], world: World) -> None:
    assert lines == [{"reader": "bills", "added": True}]
    with open_store(world.url) as store:
        assert [reader.name for reader in store.readers()] == ["bills"]


def _reader_listed(lines: list[Any], world: World) -> None:
    del world
    [line] = lines
    assert (line["name"], line["unread"], line["lost_at"]) == ("bills", 1, None)


def _feed_read(lines: list[Any], world: World) -> None:
    [line] = lines
    assert (line["task"], line["state"], line["reason"]) == ("shop.greet", "cancelled", "too late")
    with open_store(world.url) as store:
        assert store.read_feed("bills").ends == ()


def _reader_removed(lines: list[Any], world: World) -> None:
    assert lines == [{"reader": "bills", "removed": True}]
    with open_store(world.url) as store:
        assert store.readers() == []


def _pruned(lines: list[Any], world: World) -> None:
    assert lines == [{"removed": 4}]
    _finished_are_gone(world)


def _finished_are_gone(world: World) -> None:
    with open_store(world.url) as store:
        left = {job.id for job in store.list_jobs().jobs}
    assert left == {world.queued, world.scheduled, world.waiting, world.held}


def _healthy(lines: list[Any], _world: World) -> None:
    assert lines == [{"healthy": True, "problem": None, "problems": []}]


def _diagnosis(lines: list[Any], world: World) -> None:
    checks = {line["check"]: line for line in lines}
    assert all(line["ok"] for line in lines), lines
    assert {"tenure", "database", "engine", "schema", "clock", "wake-ups", "workers"} <= set(checks)
    assert checks["database"]["text"] == world.url
    assert checks["workers"]["text"] == "0 alive"


ALWAYS_MEASURED = ["enqueue.bulk", "enqueue.one", "drain.async", "drain.thread", "pickup.p50",
                   "pickup.p99", "limit.commits"]  # fmt: skip


def _measured(lines: list[Any], world: World) -> None:
    by_name = {line["name"]: line for line in lines}
    assert set(by_name) >= set(ALWAYS_MEASURED)
    assert {"wal", "limit.round_trip"} & set(by_name) == (
        set() if world.url.startswith("sqlite:") else {"wal", "limit.round_trip"}
    )
    for line in lines:
        assert list(line) == ["name", "value", "unit", "low", "high"]
        assert line["unit"] == UNITS[line["name"]]
        assert 0 <= line["low"] <= line["value"] <= line["high"]
    _nothing_is_left_of_bench(world)


def _nothing_is_left_of_bench(world: World) -> None:
    """And the user's own jobs are as they were."""
    with open_store(world.url) as store:
        assert {job.id for job in store.list_jobs().jobs} == world.ids
    assert world.state(world.queued) is State.QUEUED
    assert places(world) == []


CASES: dict[str, Case] = {
    "worker": Case(_work_in_terminal, _work_as_json),
    "dev": Case(partial(_work_in_terminal, command="dev"), partial(_work_as_json, command="dev")),
    "enqueue": Case(
        shows("enqueue", "shop.greet", "--args", '{"name": "Zoë"}', texts=["job "],
              after=_job_of_shop),
        tells("enqueue", "shop.send", "--app", "shop:app", "--args", '{"to": "me"}', "--priority",
              "-5", "--key", "welcome", look=_enqueued),
    ),
    "ls": Case(
        shows("ls", texts=["id", "state", "%waiting", "waiting", "scheduled", "shop.greet",
                           "cancelled", "1/5", "not needed"]),
        tells("ls", look=_all_jobs),
    ),
    "get": Case(
        shows("get", "%failed", texts=["failed", "shop.send", "ValueError: no such address: bob",
                                       "in send"]),
        tells("get", "%failed", look=_one("failed")),
    ),
    "why": Case(
        shows("why", "%held", texts=["wait for Eve"]),
        tells("why", "%held", look=_why),
    ),
    "timeline": Case(
        shows("timeline", "%failed", texts=["enqueued", "claimed", "failed", "w-1"]),
        tells("timeline", "%failed", look=_story),
    ),
    "attempts": Case(
        shows("attempts", "%failed", texts=["outcome", "failed", "w-1", "ValueError"]),
        tells("attempts", "%failed", look=_attempts),
    ),
    "steps": Case(
        shows("steps", "%queued", before=_with_steps,
              texts=["function", "parse", "Parser.run", '{"pages":3}', "send"]),
        tells("steps", "%queued", before=_with_steps, look=_steps),
    ),
    "errors": Case(
        shows("errors", texts=["jobs", "2", "shop.send", ERROR["message"]]),
        tells("errors", "queue=mail", look=_errors),
    ),
    "replay": Case(
        shows("replay", "state=failed", answer="y\n",
              texts=["Replay 2 jobs (2 failed)?", "replayed 2 jobs"],
              after=is_("failed", State.QUEUED)),
        tells("replay", "%succeeded", look=changes("succeeded", State.QUEUED)),
    ),
    "cancel": Case(
        shows("cancel", "task=shop.greet", answer="y\n",
              texts=["Cancel 3 jobs (2 queued, 1 scheduled)?", "cancelled 3 jobs"],
              after=is_("scheduled", State.CANCELLED)),
        tells("cancel", "%queued", look=changes("queued", State.CANCELLED)),
    ),
    "hold": Case(
        shows("hold", "%queued", texts=["held 1 job"], after=_held),
        tells("hold", "%queued", look=changes("queued", State.QUEUED)),
    ),
    "unhold": Case(
        shows("unhold", "%held", texts=["unheld 1 job"], after=_not_held),
        tells("unhold", "%held", look=changes("held", State.QUEUED)),
    ),
    "move": Case(
        shows("move", "%queued", "--due-at", "2100-01-31T08:00+01:00", texts=["moved 1 job"],
              after=is_("queued", State.SCHEDULED)),
        tells("move", "%queued", "--queue", "vip", "--priority", "-7", look=_moved),
    ),
    "rm": Case(
        shows("rm", "state=failed", answer="y\n",
              texts=["Remove 2 jobs (2 failed)?", "removed 2 jobs"], after=_failed_are_gone),
        tells("rm", "state=failed", "--yes", look=_removed),
    ),
    "feed list": Case(
        shows("feed", "list", before=_follow, texts=["bills", "follows"]),
        tells("feed", "list", before=_follow, look=_reader_listed),
    ),
    "feed add": Case(
        shows("feed", "add", "bills", texts=["reader bills is added"]),
        tells("feed", "add", "bills", look=_reader_added),
    ),
    "feed read": Case(
        shows("feed", "read", "bills", before=_follow,
              texts=["of shop.greet cancelled: too late"]),
        tells("feed", "read", "bills", before=_follow, look=_feed_read),
    ),
    "feed remove": Case(
        shows("feed", "remove", "bills", before=_follow, texts=["reader bills is removed"]),
        tells("feed", "remove", "bills", before=_follow, look=_reader_removed),
    ),
    "key get": Case(
        shows("key", "get", "shop.greet", "k", before=_take_key,
              texts=["of shop.greet has the key; it is succeeded"]),
        tells("key", "get", "shop.greet", "k", before=_take_key, look=_key_holder),
    ),
    "key free": Case(
        shows("key", "free", "shop.greet", "k", before=_take_key, texts=["the key is free"]),
        tells("key", "free", "shop.greet", "k", before=_take_key, look=_key_freed),
    ),
    "queues": Case(
        shows("queues", before=_pause_mail, texts=["default", "mail", "the post is closed"]),
        tells("queues", before=_pause_mail, look=_queues),
    ),
    "queues pause": Case(
        shows("queues", "pause", "mail", "--reason", "the post is closed",
              texts=["queue mail is paused"], after=_mail_is_paused),
        tells("queues", "pause", "mail", "--reason", "the post is closed", look=_says_paused),
    ),
    "queues resume": Case(
        shows("queues", "resume", "mail", before=_pause_mail, texts=["queue mail is resumed"],
              after=_nothing_is_paused),
        tells("queues", "resume", "mail", before=_pause_mail, look=_says_resumed),
    ),
    "workers": Case(
        shows("workers", before=announce, texts=["w-1", "host.example", "42", "default,mail"]),
        tells("workers", before=announce, look=_workers),
    ),
    "stats": Case(
        in_turn(
            shows("stats", "--exact", texts=["shop.send", "failed", "2"]),
            shows("stats", before=_counted, texts=["33.3%", "live jobs, as counted"]),
        ),
        in_turn(
            tells("stats", "--exact", look=_stats),
            tells("stats", before=_counted, look=_statistics),
        ),
    ),
    "top": Case(_top_in_terminal, tells("top", before=announce, look=_snapshot)),
    "db init": Case(
        shows("db", "init", texts=[f"the schema is at version {VERSION}"]),
        tells("db", "init", look=_migrated),
    ),
    "db status": Case(
        shows("db", "status", texts=["database", "engine", f"version {VERSION}"]),
        tells("db", "status", look=_status),
    ),
    "db migrate": Case(
        shows("db", "migrate", texts=[f"the schema is at version {VERSION}"]),
        tells("db", "migrate", look=_migrated),
    ),
    "db sql": Case(
        shows("db", "sql", "--engine", "sqlite", texts=["create table tenure_job"]),
        tells("db", "sql", look=_scripts),
    ),
    "copy": Case(_copy_in_terminal, _copy_as_json),
    "prune": Case(
        shows("prune", "--succeeded-days", "0", "--other-days", "0", answer="y\n",
              texts=["Remove 4 jobs", "removed 4 jobs"], after=_finished_are_gone),
        tells("prune", "--succeeded-days", "0", "--other-days", "0", "--yes", look=_pruned),
    ),
    "health": Case(
        shows("health", "--workers", "1", "--max-age-seconds", "600", before=announce,
              texts=["healthy"]),
        tells("health", "--max-age-seconds", "600", look=_healthy),
    ),
    "bench": Case(
        shows("bench", "--jobs", "2", "--rounds", "1", "--process-handlers", answer="y\n",
              texts=["Put load on ", " to measure it?", "100%", "median", "async handlers",
                     "child processes", "limit: commits of one row"],
              after=_nothing_is_left_of_bench),
        tells("bench", "--jobs", "2", "--rounds", "2", "--yes", look=_measured),
    ),
    "doctor": Case(
        shows("doctor", texts=["ok", "engine", "wake-ups", "arrive"]),
        tells("doctor", look=_diagnosis),
    ),
}  # fmt: skip
