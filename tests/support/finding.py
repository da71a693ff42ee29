"""Jobs of every sort, filters drawn at random, and a plain predicate that says which jobs match."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any

from tenure.rules.codec import encode
from tenure.rules.filters import Exact, Filter, Has, Span, Term, Text
from tenure.rules.gates import Limits
from tenure.rules.job import Job, State, Unique
from tenure.rules.lifecycle import fail, retry, skip, succeed
from tenure.rules.ticks import ScheduleTiming, fired_by
from tenure.store import NewSchedule, Store
from tests.support.flows import flow
from tests.support.stores import START, Clock
from tests.support.work import add, job, settle, take

QUEUES = ("default", "mail", "gpu.a")
TASKS = ("app.send", "app.train", "shop.send")
TENANTS = ("", "acme", "Zoë")
KEYS = ("k1", "k2", "a,b", "50%", "a_b", "x*y", "[z]")
WORKERS = ("w1", "w2")
ERRORS = (
    {"type": "ValueError", "message": "Timeout after 5 s"},
    {"type": "shop.errors.NoSuchUser", "message": "user 17 is unknown"},
    {"type": "builtins.ValueError", "message": "100% wrong_"},
    {"type": "KeyError", "message": ""},
)
VALUES: tuple[Any, ...] = (
    17, 17.5, -3, 0, "17", "true", True, False, None, "x", "X-ray", "Zoë", "a b", "1.10", 1.1,
    1234567890123456789, "", [1, "two"], {"id": 17, "a.b": "x"}, 1e20,
)  # fmt: skip


@dataclass
class Crowd:
    """What is in the store."""

    flows: dict[int, tuple[int, str]] = field(default_factory=dict)
    """The workflow of each node: its id and its name."""


def crowd(store: Store, clock: Clock, rnd: Random, count: int = 80) -> Crowd:
    """Enqueue jobs of every sort, and let some of them run and end in every way."""
    made = Crowd()
    store.declare_gates({"door": Limits(max_running=1)}, now=clock.now)
    for name in ("import", "export"):
        workflow = store.enqueue_workflow(flow({"a": (), "b": ("a",)}, name=name), now=clock.now)
        for node in store.list_nodes(workflow.id).nodes:
            made.flows[node.id] = (workflow.id, name)
    timing = ScheduleTiming(every_seconds=60)
    store.add_schedule(NewSchedule(name="nightly", timing=timing, job=job(queue="mail")),
                       now=clock.now)  # fmt: skip
    for n in range(count):
        add_one(store, clock, rnd)
        if n % 4 == 0:
            clock.advance(rnd.choice((1, 40, 3600)))
            store.fire(now=clock.now)
            store.promote(now=clock.now)
            work(store, clock, rnd)
    return made


def add_one(store: Store, clock: Clock, rnd: Random) -> None:
    options: dict[str, Any] = {
        "queue": rnd.choice(QUEUES), "task": rnd.choice(TASKS), "tenant": rnd.choice(TENANTS),
        "priority": rnd.choice((0, 0, -5, 10)), "max_attempts": rnd.choice((1, 5)),
        "args": encode({"user": rnd.choice(VALUES), "list": [rnd.choice(VALUES), "z"]}),
    }  # fmt: skip
    if rnd.random() < 0.5:
        options["metadata"] = encode({"tag": rnd.choice(VALUES)})
    if rnd.random() < 0.3:
        options["unique"] = Unique(key=rnd.choice(KEYS), scope=f"s{rnd.random()}")
    if rnd.random() < 0.2:
        options["delay_seconds"] = rnd.choice((30.0, 1e6))
    if rnd.random() < 0.2:
        options["gate"] = "door"
    add(store, clock.now, **options)


def work(store: Store, clock: Clock, rnd: Random) -> None:
    worker = rnd.choice(WORKERS)
    for claimed in take(store, clock.now, 3, worker=worker, queue=rnd.choice(QUEUES),
                        lease_seconds=1e7):  # fmt: skip
        error = encode(rnd.choice(ERRORS))
        delay = rnd.choice((0.0, 1e5))
        ends = (succeed(claimed), succeed(claimed), fail(claimed, error), skip(claimed),
                retry(claimed, error, delay), None)  # fmt: skip
        end = rnd.choice(ends)
        if end is not None:
            settle(store, clock.now, end, worker=worker)
    waiting = store.list_jobs(limit=3, states=[State.QUEUED, State.SCHEDULED]).jobs
    if waiting and rnd.random() < 0.4:
        store.cancel(rnd.choice(waiting).id, reason="no longer wanted", now=clock.now)


# --- the predicate --------------------------------------------------------------------------------


def matches(wanted: Filter, job: Job, made: Crowd) -> bool:
    """Does the job match? Decided from the record alone."""
    return all(_true(term, job, made) for term in wanted.terms)


def _true(term: Term, job: Job, made: Crowd) -> bool:
    return any(_choice(term, choice, job, made) for choice in term.choices) is not term.negated


def _choice(term: Term, choice: Any, job: Job, made: Crowd) -> bool:
    if term.field in ("args", "metadata"):
        return _in_document(choice, _at(getattr(job, term.field), term.path))
    if term.field == "workflow":
        id, name = made.flows.get(job.id, (None, ""))
        return id is not None and _within(choice, id) if isinstance(choice, Span) else (
            _text(choice, name))  # fmt: skip
    if isinstance(choice, Span):
        number = {
            "created": job.created_at, "due": job.due_at, "start_by": job.start_by,
            "finish_by": job.finish_by, "started": job.claimed_at,
            "finished": job.finished_at,
        }.get(term.field, getattr(job, term.field, None))  # fmt: skip
        return number is not None and _within(choice, number)
    if term.field == "error" and isinstance(choice, Text):
        name = job.error.type if job.error else ""
        pattern = _pattern(choice.parts)
        return bool(
            re.fullmatch(f"(.*[.])?{pattern}" if any(choice.parts) else pattern, name, re.DOTALL)
        )
    by = fired_by(job.metadata_json)
    text = {
        "key": job.unique_key, "error": job.error and job.error.type, "state": str(job.state),
        "text": job.error and job.error.message, "schedule": by and by.name,
    }.get(term.field, getattr(job, term.field, None))  # fmt: skip
    return _text(choice, text or "")


def _text(choice: Text | Has, text: str) -> bool:
    if isinstance(choice, Has):
        return _lower(choice.text) in _lower(text)
    return re.fullmatch(_pattern(choice.parts), text, re.DOTALL) is not None


def _pattern(parts: Sequence[str]) -> str:
    return ".*".join(map(re.escape, parts))


def _lower(text: str) -> str:
    return "".join(char.lower() if char.isascii() else char for char in text)


def _within(span: Span, value: Any) -> bool:
    low: Any = span.low
    high: Any = span.high
    return (low is None or value > low or (span.low_in and value == low)) and (
        high is None or value < high or (span.high_in and value == high)
    )


def _at(value: Any, path: Sequence[str]) -> Any:
    for key in path:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        else:
            return None
    return value


def _in_document(choice: Any, value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match choice:
        case Text() | Has():
            return isinstance(value, str) and _text(choice, value)
        case Exact(None):
            return value is None
        case Exact(bool() as flag, text):
            return value is flag or (text is not None and value == text)
        case Exact(wanted, text):
            return (number and value == wanted) or (isinstance(value, str) and value == text)
    bound = choice.high if choice.low is None else choice.low
    if isinstance(bound, str):
        return isinstance(value, str) and _within(choice, value)
    return number and _within(choice, value)


# --- random filters -------------------------------------------------------------------------------


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def random_filter(rnd: Random, now: datetime, newest_id: int) -> str:
    """One to three words."""
    return " ".join(
        dict.fromkeys(random_word(rnd, now, newest_id) for _ in range(rnd.choice((1, 1, 2, 3))))
    )


def random_word(rnd: Random, now: datetime, newest_id: int) -> str:
    texts: dict[str, Sequence[str]] = {
        "queue": (*QUEUES, "m*", "*"), "task": (*TASKS, "app.*", "*.send", "nothing"),
        "tenant": (*map(quoted, TENANTS), "ac*"),
        "key": (*map(quoted, (*KEYS, "")), "k*", "*b", "a_*", "*[z*", "*0%*"),
        "worker": ('"w1"', '""', "w*", "w2"), "gate": ("door", "d*"), "schedule": ("nightly", '""'),
        "error": ("ValueError", "NoSuchUser", "shop.errors.NoSuchUser", "*Error", '""', "Value*"),
        "text": ("timeout", "17", '"100% wrong_"', "%"), "reason": ("wanted", "no*"),
        "workflow": ("import", "ex*", '""', "1", str(newest_id)),
    }  # fmt: skip
    times = ("2h", "40s", "1d", "now", "+1d", f"{START:%Y-%m-%dT%H:%M}", f"{now:%Y-%m-%d}", "today",
             f"{START:%Y-%m-%d}..", "3h..1h", "..30m")  # fmt: skip
    sort = rnd.choice(("text", "text", "state", "number", "time", "json", "json", "id"))
    negation = rnd.choice(("", "", "!"))
    if sort == "state":
        return f"state{negation}={','.join(rnd.sample(list(State), rnd.choice((1, 2, 4))))}"
    if sort == "text":
        name = rnd.choice(list(texts))
        if rnd.random() < 0.3:
            return f"{name}{negation}~{rnd.choice(('a', 'A', 'e', quoted('%'), quoted('_'), 'or'))}"
        return f"{name}{negation}={','.join(rnd.sample(texts[name], rnd.choice((1, 1, 2))))}"
    if sort == "time":
        name, value = rnd.choice(("created", "due", "started", "finished")), rnd.choice(times)
        if ".." in value:
            return f"{name}{negation}={value}"
        return f"{name}{rnd.choice(('<', '<=', '>', '>=', '=', '!='))}{value}"
    if sort == "id":
        some = sorted(rnd.sample(range(1, newest_id + 9), 2))
        return rnd.choice((f"id{negation}={some[0]}..{some[1]}", f"{some[0]} {some[1]}",
                           f"id>{some[0]}", f"id!={some[0]}"))  # fmt: skip
    if sort == "number":
        name, value = rnd.choice((("priority", "-5"), ("attempts", "1"), ("priority", "0")))
        return f"{name}{rnd.choice(('<', '<=', '>', '>=', '=', '!='))}{value}"
    path = rnd.choice(("args.user", "args.list.0", "args.list.1", "metadata.tag", "args.user.id",
                       'args.user."a.b"', "args.none"))  # fmt: skip
    value = rnd.choice(("17", '"17"', "true", "null", "x*", '"x"', "17.5", "1.10", "0..17", "-3",
                        "1234567890123456789", "Zoë", '""', "1e20", "z", "m", "..0"))  # fmt: skip
    op = rnd.choice(("=", "=", "!=", "<", ">=", "~"))
    if op not in ("=", "!=") and (value in ('""', "null", "true") or ".." in value or "*" in value):
        op = "="
    return f"{path}{op}{value}"
