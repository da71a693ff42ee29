"""The search for jobs: every field, every order, page by page, on every store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from tenure.errors import InvalidFilter, InvalidInput, OutOfRange
from tenure.rules.codec import encode
from tenure.rules.filters import FIELDS, parse
from tenure.rules.gates import Limits
from tenure.rules.job import FINAL_STATES, Job, State, Unique
from tenure.rules.lifecycle import fail, retry, succeed
from tenure.store import Store
from tests.support.finding import crowd, matches, random_filter
from tests.support.flows import flow
from tests.support.plain import Plain
from tests.support.stores import START, Clock
from tests.support.work import ERROR, add, add_many, run, settle, take, take_one


def pages(store: Store, filter: str = "", limit: int = 100, **options: Any) -> list[Job]:
    """All pages of a list."""
    jobs: list[Job] = []
    after = None
    for _ in range(2000):
        page = store.list_jobs(filter, limit=limit, after=after, **options)
        assert len(page.jobs) <= limit
        assert page.looked_at >= len(page.jobs)
        jobs += page.jobs
        after = page.next
        if after is None:
            return jobs
    raise AssertionError("the list does not end")


def ids(store: Store, filter: str = "", **options: Any) -> list[int]:
    return [job.id for job in pages(store, filter, **options)]


def bound(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Let a page look at so many jobs, in small steps."""
    monkeypatch.setattr("tenure.store.look.find.SCAN_ROWS", rows)
    monkeypatch.setattr("tenure.store.look.find.LEAST_STEP", 2)
    monkeypatch.setattr("tenure.store.look.find.SCAN_SECONDS", 1e9)


# --- every field ----------------------------------------------------------------------------------


def one_of_each(store: Store, clock: Clock) -> dict[str, int]:
    """Jobs that differ in one thing each."""
    now = clock.now
    store.declare_gates({"door": Limits(max_running=1)}, now=now)
    made = {
        "plain": add(store, now),
        "queue": add(store, now, queue="mail"),
        "task": add(store, now, task="shop.send"),
        "tenant": add(store, now, tenant="acme"),
        "key": add(store, now, unique=Unique(key="order 7")),
        "priority": add(store, now, priority=-7),
        "gate": add(store, now, gate="door", queue="doors"),
        "args": add(store, now, args=encode({"user": 17, "deep": {"list": ["a", {"b": True}]}})),
        "metadata": add(store, now, metadata=encode({"tenant_id": "x"})),
        "due": add(store, now, delay_seconds=7200),
        "start_by": add(store, now, start_within_seconds=3600),
        "finish_by": add(store, now, finish_within_seconds=3600),
    }
    workflow = store.enqueue_workflow(flow({"a": ()}, name="import"), now=now)
    [node] = store.list_nodes(workflow.id).nodes
    made["workflow"] = node.id
    made["workflow id"] = workflow.id
    made["failed"] = add(store, now, queue="f")
    claimed = take_one(store, clock.advance(60), queue="f", worker="w7")
    error = encode({"type": "shop.errors.NoSuchUser", "message": "Connection RESET by peer"})
    settle(store, clock.advance(60), fail(claimed, error), worker="w7")
    made["running"] = add(store, clock.advance(60), queue="r")
    running = take_one(store, clock.advance(60), queue="r", worker="w8")
    store.annotate("w8", [(running, {"loss": 0.3})], now=clock.now)
    return made


CASES = {
    "id={key}": "key", "{key}": "key", "state=running": "running", "state=failed": "failed",
    "state=scheduled": "due", "queue=mail": "queue", "queue=m*l": "queue", "queue~AIL": "queue",
    "task=shop.*": "task", "task=shop.send": "task", "tenant=acme": "tenant",
    'key="order 7"': "key", "key=order*": "key", 'key!=""': "key", "priority=-7": "priority",
    "priority<-3": "priority", "priority=..-3": "priority", "gate=door": "gate",
    "worker=w7": "failed", "worker=w8": "running", 'worker!="" state!=failed': "running",
    "attempts>=1": "failed", "attempts=1": "failed", "error=NoSuchUser": "failed",
    "error=shop.errors.NoSuchUser": "failed", "error=shop.*": "failed", "error~nosuch": "failed",
    "text~reset": "failed", 'text="Connection RESET by peer"': "failed", "text=Conn*": "failed",
    "workflow={workflow_id}": "workflow", "workflow=import": "workflow", 'workflow!=""': "workflow",
    "args.user=17": "args", "args.user>=17": "args", "args.user=10..20": "args",
    "args.deep.list.0=a": "args", "args.deep.list.1.b=true": "args", "args.user!=null": "args",
    "notes.loss<1": "running", "notes.loss=0.3": "running",
    "metadata.tenant_id=x": "metadata", 'metadata."tenant_id"="x"': "metadata",
    "due>now": "due", "due<+3h": "due", "start_by>now": "start_by", "finish_by<+3h": "finish_by",
    "started>1h": "failed running", "finished>1h": "failed",
    "started=..3m": "failed", "created>3m": "running", "created=2m..": "running",
    "state=queued,running queue=r": "running", "state!=queued,scheduled": "failed running",
}  # fmt: skip


def test_every_field_finds_its_job(store: Store, clock: Clock) -> None:
    made = one_of_each(store, clock)
    for text, names in CASES.items():
        words = text.format(key=made["key"], workflow_id=made["workflow id"])
        expected = {made[name] for name in names.split()}
        assert set(ids(store, words, now=clock.now)) == expected, words
    assert {
        term.field for text in CASES for term in parse(text.format(key=1, workflow_id=1)).terms
    } == (FIELDS.keys() - {"schedule", "reason"})


def test_a_negation_finds_all_others(store: Store, clock: Clock) -> None:
    one_of_each(store, clock)
    everything = set(ids(store))
    for text in ("queue=mail", "worker=w8", "error=NoSuchUser", "text~reset", "args.user=17",
                 "metadata.tenant_id=x", "workflow=import", "gate=door", "key=ord*", "state=failed",
                 "started=..now", "finished=..now", "due=now..", "attempts=1"):  # fmt: skip
        found = set(ids(store, text, now=clock.now))
        for mark, negated in (("=", "!="), ("~", "!~")):
            if mark in text:
                others = set(ids(store, text.replace(mark, negated, 1), now=clock.now))
                assert found, text
                assert others == everything - found, text
                break


def test_a_schedule_finds_its_jobs(store: Store, clock: Clock) -> None:
    made = crowd(store, clock, Random(1), 12)
    jobs = pages(store)
    assert made.flows
    expected = [job.id for job in jobs if (job.metadata.get("schedule") or {}).get("name")]
    assert expected
    assert ids(store, "schedule=nightly") == expected


def test_only_a_star_is_a_wildcard(store: Store, clock: Clock) -> None:
    keys = ("a_b", "axb", "50%", "50x", "[z]", "z", "a?b", "x*y", "xzy", "A_B")
    made = {key: add(store, clock.now, unique=Unique(key=key)) for key in keys}
    for text, names in {
        "a_*": ["a_b"], "*0%*": ["50%"], "*[z]*": ["[z]"], "a?*": ["a?b"], '"x*y"': ["x*y"],
        "x*y": ["x*y", "xzy"], "*": [*keys], "a*b": ["a_b", "axb", "a?b"],
    }.items():  # fmt: skip
        assert sorted(ids(store, f"key={text}")) == sorted(made[name] for name in names), text


def test_keywords_mean_exact_values(store: Store, clock: Clock) -> None:
    made = one_of_each(store, clock)
    star = add(store, clock.now, unique=Unique(key="order*"), args=encode({"user": "17"}))
    asked: list[tuple[dict[str, Any], set[str]]] = [
        ({"queue": "mail"}, {"queue"}), ({"queue": ["mail", "r"]}, {"queue", "running"}),
        ({"state": "failed"}, {"failed"}), ({"states": [State.FAILED]}, {"failed"}),
        ({"id": made["key"]}, {"key"}), ({"key": "order 7"}, {"key"}),
        ({"key": "order*"}, {"star"}),
        ({"args": {"user": 17}}, {"args"}), ({"args": {"user": "17"}}, {"star"}),
        ({"args": {"deep": {"list": {"0": "a"}}}}, {"args"}), ({"tenant": "acme"}, {"tenant"}),
        ({"metadata": {"tenant_id": ["x", "y"]}}, {"metadata"}), ({"worker": "w8"}, {"running"}),
        ({"error": "NoSuchUser"}, {"failed"}), ({"text": "reset"}, {"failed"}),
        ({"workflow": made["workflow id"]}, {"workflow"}), ({"workflow": "import"}, {"workflow"}),
        ({"finished_from": START, "finished_until": clock.now}, {"failed"}),
        ({"created_from": START + timedelta(minutes=3)}, {"running", "star"}),
        ({"queue": "mail", "task": "app.work"}, {"queue"}), ({"queue": "r", "task": "a.b"}, set()),
    ]  # fmt: skip
    made["star"] = star
    for fields, names in asked:
        assert set(ids(store, **fields)) == {made[name] for name in names}, fields


# --- pages ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_search_finds_what_a_plain_predicate_finds(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, seed: int, whole: bool
) -> None:
    """Random jobs, random filters, every order, pages and steps of every size: nothing is lost,
    nothing comes twice, and the order is right."""
    rnd = Random(seed)
    made = crowd(store, clock, rnd)
    monkeypatch.setattr("tenure.store.look.find.SCAN_SECONDS", 1e9)
    everything = pages(store, limit=1000)
    hits = 0
    for _ in range(120 if whole else 40):
        bound(monkeypatch, rnd.choice((3, 7, 50, 20_000)))
        text = random_filter(rnd, clock.now, everything[0].id)
        order = rnd.choice((None, None, "newest", "oldest", "finished"))
        try:
            wanted = parse(text)
        except InvalidFilter as error:
            assert "given twice" in str(error)  # noqa: PT017
            continue
        found = pages(store, text, limit=rnd.choice((1, 4, 100)), order=order, now=clock.now)
        expected = [job for job in everything if matches(wanted.at(clock.now), job, made)]
        check_order(text, order, found, expected)
        hits += len(found)
    assert hits > (500 if whole else 150)


def check_order(text: str, order: str | None, found: list[Job], expected: list[Job]) -> None:
    by_finish = sorted(
        (job for job in expected if job.finished_at is not None),
        key=lambda job: (job.finished_at, job.id), reverse=True,
    )  # fmt: skip
    ways = {
        "newest": expected, "oldest": expected[::-1], "finished": by_finish,
    }  # fmt: skip
    if order is None:  # by finish time, if the filter asks for one
        order = "newest"
        if [job.id for job in found] == [job.id for job in by_finish] and "finished" in text:
            order = "finished"
    assert [job.id for job in found] == [job.id for job in ways[order]], (text, order)
    assert found == ways[order]


def test_jobs_that_end_between_two_pages_are_neither_lost_nor_seen_twice(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, 5)
    rnd = Random(4)
    added = add_many(store, clock.now, 40)
    for order in ("newest", "oldest"):
        seen: list[int] = []
        after = None
        while True:
            page = store.list_jobs("queue=default", limit=3, after=after, order=order)
            seen += [job.id for job in page]
            for claimed in take(store, clock.advance(1), 1):
                end = rnd.choice((succeed(claimed), fail(claimed, ERROR), retry(claimed, ERROR, 9)))
                settle(store, clock.now, end)
            store.replay_many(rnd.sample(added, 3), now=clock.now)
            after = page.next
            if after is None:
                break
        assert sorted(seen) == added
        assert seen == sorted(added, reverse=order == "newest")


def test_a_page_without_matches_tells_how_many_it_looked_at(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, 10)
    rare = add(store, clock.now, task="app.rare")
    add_many(store, clock.now, 25)
    page = store.list_jobs("task=app.rare")
    assert (page.jobs, page.looked_at) == ((), 10)
    assert page.next is not None
    page = store.list_jobs("task=app.rare", after=page.next)
    assert (page.jobs, page.looked_at) == ((), 10)
    page = store.list_jobs("task=app.rare", after=page.next)
    assert ([job.id for job in page], page.looked_at, page.next) == ([rare], 6, None)


def test_a_page_ends_when_its_time_is_over(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound(monkeypatch, 10_000)
    monkeypatch.setattr("tenure.store.look.find.SCAN_SECONDS", 0.0)
    add_many(store, clock.now, 25)
    page = store.list_jobs("task=app.rare", limit=2)
    assert page.jobs == ()
    assert page.looked_at == 2
    assert page.next is not None
    assert ids(store, "task=app.rare", limit=2) == []


@pytest.mark.parametrize(
    ("text", "most"),
    [("state=failed", 1), ("key=k", 1), ("state=running", 1), ("id=5", 1), ("error=ValueError", 2),
     ("finished>1h state=failed", 1), ("workflow=99", 0), ("id=4..6", 3)],
)  # fmt: skip
def test_a_narrow_search_looks_at_few_jobs(
    store: Store, clock: Clock, text: str, most: int
) -> None:
    run_one_of(store, clock)
    page = store.list_jobs(text, now=clock.now)
    assert page.next is None
    assert page.looked_at <= most


def run_one_of(store: Store, clock: Clock) -> None:
    """Thirty jobs that succeeded, one that failed, one with a key, one that runs."""
    add_many(store, clock.now, 30)
    settle(store, clock.now, *[succeed(claimed) for claimed in take(store, clock.now, 30)])
    add(store, clock.now)
    run(store, clock.now, lambda claimed: fail(claimed, ERROR))
    add(store, clock.now, unique=Unique(key="k"))
    run(store, clock.now, succeed)
    add(store, clock.now)
    take_one(store, clock.now)


def test_relative_times_stay_the_same_on_all_pages(store: Store, clock: Clock) -> None:
    added = add_many(store, clock.now, 5)
    page = store.list_jobs("created>1h", limit=2, now=clock.now)
    later = clock.advance(7200)
    found = [*page, *store.list_jobs("created>1h", after=page.next, now=later)]
    assert sorted(job.id for job in found) == added
    assert store.list_jobs("created>1h", now=later).jobs == ()


# --- orders ---------------------------------------------------------------------------------------


def test_the_last_finished_job_comes_first(store: Store, clock: Clock) -> None:
    added = add_many(store, clock.now, 6)
    claimed = take(store, clock.now, 6)
    Random(3).shuffle(claimed)
    for each in claimed:
        end = fail(each, ERROR) if each.id % 2 else succeed(each)
        settle(store, clock.advance(0.5), end)
    last_first = [each.id for each in reversed(claimed)]
    assert ids(store, order="finished", limit=2, now=clock.now) == last_first
    failed = [id for id in last_first if id % 2]
    assert ids(store, "state=failed", order="finished", limit=2, now=clock.now) == failed
    assert ids(store, "finished>1h", limit=1, now=clock.now) == last_first
    assert sorted(added) == sorted(last_first)
    assert {job.state for job in pages(store, "order=finished", now=clock.now)} <= FINAL_STATES


def test_jobs_that_finished_long_ago_are_found_from_the_end(store: Store, clock: Clock) -> None:
    """Windows of time grow until they hold enough jobs, and shrink again."""
    order: list[int] = []
    for seconds in (3e7, 1e6, 1e6, 1.0, 1e-3, 1e-3, 4e5, 5e6):
        added = add_many(store, clock.advance(seconds), 3)
        settle(store, clock.now, *[succeed(claimed) for claimed in take(store, clock.now)])
        order = added[::-1] + order
    now = clock.advance(9e6)
    for limit in (1, 2, 100):
        assert ids(store, order="finished", limit=limit, now=now) == order


def test_next_is_the_order_of_the_claims(store: Store, clock: Clock) -> None:
    rnd = Random(2)
    store.declare_gates({"door": Limits(max_running=1)}, now=clock.now)
    for n in range(20):
        options = {"needs": rnd.choice((0, 1, 2, 3))} if n % 2 else {}
        add(store, clock.now, priority=rnd.choice((-1, 0, 5)), **options)
    add(store, clock.now, queue="other")
    add(store, clock.now, delay_seconds=60)
    held = add(store, clock.now)
    store.hold(held, now=clock.now)
    gone = add(store, clock.now)
    store.cancel(gone, now=clock.now)
    at_gate = [add(store, clock.now, gate="door") for _ in range(2)]
    for limit in (1, 3, 100):
        found = ids(store, "queue=default", order="next", limit=limit)
        assert found[-2:] == at_gate
        jobs = [store.get(id) for id in found[:-2]]
        assert found[:-2] == [job.id for job in sorted(jobs, key=lambda j: (j.priority, j.id))]
        assert len(found) == 22
    assert ids(store, "queue=default,other priority=-1 order=next")
    with pytest.raises(InvalidFilter, match="needs the name of a queue"):
        store.list_jobs(order="next")


# --- tenants --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tenant_finds_its_own_and_global_jobs_only(store: Store, clock: Clock) -> None:
    rnd = Random(5)
    made = crowd(store, clock, rnd)
    seen = [job for job in pages(store, limit=1000) if job.tenant in ("", "acme")]
    acme = store.for_tenant("acme")
    for order in ("newest", "oldest", "finished"):
        for _ in range(25):
            text = random_filter(rnd, clock.now, seen[0].id)
            try:
                wanted = parse(text).at(clock.now)
            except InvalidFilter:
                continue
            expected = [job for job in seen if matches(wanted, job, made)]
            found = pages(acme, text, order=order, now=clock.now)
            check_order(text, order, found, expected)
    for text in ("tenant=Zoë", 'id=1..9999 tenant!=acme tenant!=""', "key=k1 tenant=Zoë"):
        assert ids(acme, text) == []
    assert {job.tenant for job in pages(acme, "queue=mail order=next")} <= {"", "acme"}


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("quue=mail", 0, "there is no field 'quue'; did you mean queue?.*Fields: id, state"),
        ("queue=mail colour=red", 11, "there is no field 'colour'; Fields"),
        ("state=faild", 6, "unknown state 'faild'; did you mean failed?"),
        ("queue=mail broken", 11, "'broken' is not a filter"),
        ('key="a b', 4, 'the closing " is missing'),
        ("key=", 4, "a value is missing"),
        ("queue=a,,b", 8, "a value is missing"),
        ("queue>a", 0, "queue cannot be compared by >; use != !~ = ~"),
        ("attempts=x", 9, "not a whole number"),
        ("attempts>1,2", 11, "> takes one value"),
        ("created>yesterdy", 8, "is not a time"),
        ("created>2026-02-30", 8, "is not a time"),
        ("args=1", 0, "args needs a path, such as args.user"),
        ("queue.x=1", 0, "queue has no parts"),
        ("state=failed state=queued", 13, "given twice"),
        ("zone=Mars/Base", 5, "no time zone"),
        ("order=best", 6, "unknown order 'best'; known: newest, oldest, finished, next"),
        ('queue="a b"', 6, "not a valid name"),
        ("text~\"\"", 5, "every text has an empty part"),
    ],
)  # fmt: skip
def test_a_bad_filter_is_refused_with_its_position(
    store: Store, text: str, position: int, words: str
) -> None:
    with pytest.raises(InvalidFilter, match=words) as refused:
        store.list_jobs(text)
    assert refused.value.position == position
    if not words.startswith("a filter"):
        assert f"at character {position + 1}: " in str(refused.value)


def test_bad_options_are_refused(store: Store, clock: Clock) -> None:
    add_many(store, clock.now, 3)
    next_page = store.list_jobs(limit=1).next
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (OutOfRange, {"limit": 0}),
        (OutOfRange, {"limit": 1001}),
        (InvalidInput, {"order": "best"}),
        (InvalidInput, {"filter": "order=oldest", "order": "newest"}),
        (InvalidInput, {"filter": 5}),
        (InvalidInput, {"states": []}),
        (InvalidInput, {"queue": []}),
        (InvalidInput, {"queue": "no spaces"}),
        (InvalidInput, {"args": "user"}),
        (InvalidInput, {"args": {"user": object()}}),
        (InvalidInput, {"key": "nul\0"}),
        (InvalidFilter, {"quue": "mail"}),
        (OutOfRange, {"created_from": datetime(2026, 1, 1)}),  # noqa: DTZ001
        (InvalidFilter, {"after": "nonsense"}),
        (InvalidFilter, {"after": next_page, "filter": "queue=mail"}),
        (InvalidFilter, {"after": next_page, "order": "oldest"}),
    ]  # fmt: skip
    for error, options in wrong:
        with pytest.raises(error):
            store.list_jobs(**options)


HOSTILE = (
    "'", "''", "\"", "\\", "';--", "x' or '1'='1", "'; delete from tenure_job; --", "%", "%s",
    "%(now)s", ":now", "?", "$1", "{GATE}", "tenure.job", "/*filter*/", "') or true --",
)  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_is_never_part_of_the_statement(store: Store, clock: Clock, value: str) -> None:
    """Whatever a value is: it finds the job that has it, and nothing else."""
    add(store, clock.now)
    document = encode({"user": value, "deep": {"at": value}})
    own = add(store, clock.now, args=document, metadata=document, unique=Unique(key=value))
    assert ids(store, key=value) == [own]
    assert ids(store, args={"user": value}) == [own]
    text = '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    for words in (f"key={text}", f"args.user={text}", f"metadata.deep.at={text}", f"key~{text}",
                  f"args.user~{text} key={text}"):  # fmt: skip
        assert ids(store, words) == [own], words
    assert ids(store, f"tenant={text}") == ids(store, f"worker={text}") == []
    if not {'"', "\\"} & {*value}:
        assert ids(store, f'args."{value}"=1') == []
        assert ids(store, args={value: 1}) == []
    assert len(ids(store)) == 2


def test_documents_of_other_programs_break_no_search(
    store: Store, plain: Plain, clock: Clock
) -> None:
    """What is no JSON, or cannot be read as text, counts as absent."""
    good = add(store, clock.now, args=encode({"user": 17}))
    odd = add(store, clock.now)
    texts = ['{"user": "\\u0000"}', '{"user": "\\ud800"}', '{"user": 1e400}', "[]", "17", "null"]
    for text in texts:
        plain.rows(f"update tenure.job set args = '{text}' where id = {odd}")
        for words in ("args.user=17", "args.user>3 args.user<1e9", "args.user=17 args.user!~x"):
            assert ids(store, words) == [good], (text, words)
        assert ids(store, "args.user!=17") == [odd]


def test_zones_move_the_days(store: Store, clock: Clock) -> None:
    clock.now = datetime(2026, 7, 1, 22, 30, tzinfo=UTC)  # half past midnight in Berlin
    own = add(store, clock.now)
    assert ids(store, "created=2026-07-01") == [own]
    assert ids(store, "created=2026-07-02 zone=Europe/Berlin") == [own]
    assert ids(store, "created=2026-07-01 zone=Europe/Berlin") == []
    assert ids(store, "created=today zone=Europe/Berlin", now=clock.now) == [own]
    assert ids(store, "created=yesterday zone=Europe/Berlin", now=clock.advance(86_400)) == [own]
    assert ids(store, "created>=2026-07-02T00:30+02:00") == [own]
    assert ids(store, "created>2026-07-02T00:30+02:00") == []
    assert ids(store, "created=2026-06-01..2026-07-01") == [own]
