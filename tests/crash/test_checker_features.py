"""The checker can fail, continued: gates, schedules, tenants, counts, blows, and rows.

And it tells what it has found: each violation comes with the lines of its jobs, in order of time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tenure.rules.ticks import ScheduleTiming
from tenure.store import open_store
from tenure.testing.recorder import RecordingEnvironment
from tests.crash import test_checker, test_checker_flows
from tests.crash.forger import LEASE_SECONDS, PIDS, Forger
from tests.support import causes, features, invariants, recovery
from tests.support.books import Blow, Books, Expected, Stall, Violation
from tests.support.history import GateRow, ScheduleRow
from tests.support.invariants import check, report, violations
from tests.support.plain import Plain
from tests.support.work import job

Forgery = Callable[[Forger], None]
STRICT = GateRow(name="strict", max_running=1, keyed=True)
EVERY_SECOND = ScheduleTiming(cron="* * * * * *", catch_up="all")


def all_of(forger: Forger, **expected: Any) -> list[Violation]:
    """What is wrong."""
    return list(violations(Books(forger.records, forger.final), Expected(**expected)))


def gate_exceeded(f: Forger) -> None:
    f.final.gates.append(STRICT)
    f.enqueue(1, 2)
    f.claim(1)
    f.run(1, seconds=5.0)
    f.claim(2, worker="w2")
    f.run(2, worker="w2")
    f.settle(2, worker="w2")
    f.wait(3)
    f.settle(1)
    f.row(1, gate="strict", gate_key="k")
    f.row(2, gate="strict", gate_key="k")


def gate_too_fast(f: Forger) -> None:
    f.final.gates.append(GateRow(name="paced", rate=0.1, burst=1))
    f.happy(1, gate="paced", gate_key="")
    f.happy(2, gate="paced", gate_key="")


def gate_out_of_order(f: Forger) -> None:
    f.final.gates.append(STRICT)
    f.enqueue(1)
    f.enqueue(2)
    f.ends_well(2, gate="strict", gate_key="k")
    f.ends_well(1, gate="strict", gate_key="k")


def gate_out_of_order_within_a_bulk(f: Forger) -> None:
    f.final.gates.append(STRICT)
    f.enqueue(1, 2)
    f.ends_well(2, gate="strict", gate_key="k")
    f.ends_well(1, gate="strict", gate_key="k")


def tick_twice(f: Forger) -> None:
    f.ticked(1, 1000.0)
    f.ticked(2, 1000.0)


def tick_missing(f: Forger) -> None:
    f.final.schedules.append(
        ScheduleRow(name="beat", timing=EVERY_SECOND, created_at=999.5, done_until=1002.0)
    )
    f.ticked(1, 1000.0)
    f.ticked(2, 1002.0)


def tick_without_its_job(f: Forger) -> None:
    f.ticked(1, 1000.0)
    f.records.calls.clear()
    f.records.runs.clear()
    f.final.jobs.clear()


def tenant_crossed(f: Forger) -> None:
    f.enqueue(1, tenant="acme")
    f.ends_well(1)


def tenant_crossed_at_a_key(f: Forger) -> None:
    f.happy(1)
    f.enqueue(1, created=False, tenant="acme")


def tenant_crossed_while_it_ran(f: Forger) -> None:
    f.enqueue(1, tenant="acme")
    f.claim(1)
    f.run(1, tenant="other")
    f.settle(1)
    f.row(1, tenant="acme")


def tenant_crossed_in_a_workflow(f: Forger) -> None:
    f.happy(1)
    f.flow(1, tenant="acme")


def hook_called_twice(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.run(1)
    f.settle(1, outcome="fail")
    f.row(1, state="failed")
    for id in (2, 3):
        f.ends_well(id, called_for=(1, 1))


def hook_without_a_failure(f: Forger) -> None:
    f.happy(1)
    f.ends_well(2, called_for=(1, 1))


def counts_differ(f: Forger) -> None:
    f.happy(1)
    f.final.counted = {"succeeded": 1, "queued": 1}


def crash_missing(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.run(1)
    f.row(1, state="cancelled", attempts=0)


def late_start(f: Forger) -> None:
    f.enqueue(1)
    f.claim(1)
    f.run(1)
    f.wait(LEASE_SECONDS)
    f.event(1, 1, "crashed", charged=True)
    f.claim(1, 2, "w2")
    f.wait(10)
    f.run(1, 2, "w2")
    f.settle(1, 2, "w2")
    f.row(1, 2, attempts=2, crashes=1)


def struck(at: float) -> Mapping[str, Any]:
    """The first worker was killed then."""
    return {"blows": [Blow(PIDS["w1"], at, "kill")]}


FORGERIES: list[tuple[Forgery, str, Mapping[str, Any]]] = [
    (gate_exceeded, "gate exceeded", {}),
    (gate_too_fast, "gate too fast", {}),
    (gate_out_of_order, "gate out of order", {}),
    (gate_out_of_order_within_a_bulk, "gate out of order", {}),
    (tick_twice, "tick twice", {}),
    (tick_missing, "tick missing", {}),
    (tick_without_its_job, "tick without its job", {}),
    (tenant_crossed, "tenant crossed", {}),
    (tenant_crossed_at_a_key, "tenant crossed", {}),
    (tenant_crossed_while_it_ran, "tenant crossed", {}),
    (tenant_crossed_in_a_workflow, "tenant crossed", {}),
    (hook_called_twice, "hook called twice", {}),
    (hook_without_a_failure, "hook without a failure", {}),
    (counts_differ, "counts differ", {}),
    (crash_missing, "crash missing", struck(1010.0)),
    (late_start, "late recovery", {"start_seconds": LEASE_SECONDS + 2, **struck(1003.2)}),
]


@pytest.mark.parametrize(
    ("forgery", "name", "expected"), FORGERIES, ids=[forgery.__name__ for forgery, *_ in FORGERIES]
)
def test_a_forged_history_is_found_out(
    forgery: Forgery, name: str, expected: Mapping[str, Any]
) -> None:
    forger = Forger()
    forgery(forger)
    assert {violation.name for violation in all_of(forger, **expected)} == {name}


def a_gate_is_passed_one_by_one(f: Forger) -> None:
    f.final.gates.append(STRICT)
    f.enqueue(1, 2)
    for id in (1, 2, 3):
        if id == 3:
            f.enqueue(3)
        f.ends_well(id, gate="strict", gate_key="k")


def a_gate_is_passed_when_a_lease_is_over(f: Forger) -> None:
    f.final.gates.append(STRICT)
    f.enqueue(1, 2)
    f.claim(1)
    f.run(1, seconds=100.0)  # stopped, and then it went on
    f.wait(LEASE_SECONDS - 1)
    f.event(1, 1, "crashed", charged=True)
    f.ends_well(2, gate="strict", gate_key="k")
    f.claim(1, 2, "w2")
    f.run(1, 2, "w2")
    f.settle(1, 2, "w2")
    f.row(1, 2, attempts=2, crashes=1, gate="strict", gate_key="k")


def a_bucket_is_filled_again(f: Forger) -> None:
    f.final.gates.append(GateRow(name="paced", rate=0.1, burst=1))
    f.happy(1, gate="paced", gate_key="")
    f.wait(10)
    f.happy(2, gate="paced", gate_key="")


def every_tick_has_its_job(f: Forger) -> None:
    f.final.schedules.append(
        ScheduleRow(name="beat", timing=EVERY_SECOND, created_at=999.5, done_until=1001.0)
    )
    f.ticked(1, 1000.0)
    f.ticked(2, 1001.0)


def a_job_for_later_is_overtaken(f: Forger) -> None:
    f.final.gates.append(STRICT)
    f.enqueue(1, later=[0])
    f.enqueue(2)
    f.ends_well(2, gate="strict", gate_key="k")
    f.ends_well(1, gate="strict", gate_key="k")


def two_tenants_have_a_schedule_of_one_name(f: Forger) -> None:
    f.ticked(1, 1000.0)
    f.ticked(2, 1000.0, tenant="acme")


def tenants_apart(f: Forger) -> None:
    f.enqueue(1, tenant="acme")
    f.claim(1)
    f.run(1, tenant="acme")
    f.settle(1)
    f.row(1, tenant="acme")
    f.final.counted = {"succeeded": 1}


@pytest.mark.parametrize(
    "story",
    [
        a_gate_is_passed_one_by_one,
        a_gate_is_passed_when_a_lease_is_over,
        a_bucket_is_filled_again,
        every_tick_has_its_job,
        a_job_for_later_is_overtaken,
        two_tenants_have_a_schedule_of_one_name,
        tenants_apart,
    ],
)
def test_a_true_story_passes(story: Forgery) -> None:
    forger = Forger()
    story(forger)
    assert all_of(forger) == []


def test_a_tick_may_be_missing_where_somebody_sets_the_clock() -> None:
    forger = Forger()
    tick_missing(forger)
    assert all_of(forger, every_tick=False) == []


def test_what_stalls_everybody_is_not_the_workers_fault() -> None:
    forger = Forger()
    late_start(forger)
    stalls = [Stall("the server was away", 1010.0, 1020.0)]
    assert all_of(forger, **struck(1003.2), start_seconds=LEASE_SECONDS + 4, stalls=stalls) == []
    assert all_of(forger, disturbed=set(), stalls=stalls) == []
    assert {v.name for v in all_of(forger, disturbed=set())} == {"unexplained crash"}
    short = [Stall("a hiccup", 1010.0, 1010.1)]
    found = all_of(forger, disturbed=set(), stalls=short)
    assert {v.name for v in found} == {"unexplained crash"}


def test_a_blow_explains_only_what_it_can_have_hit() -> None:
    forger = Forger()
    late_start(forger)
    own = {PIDS["w1"]}
    assert all_of(forger, disturbed=own, **struck(1003.2)) == []
    found = all_of(forger, disturbed=own, **struck(1000.0))
    assert {v.name for v in found} == {"unexplained crash"}, "it was hit before it had the job"


def test_every_violation_has_its_forgery_and_every_invariant_a_violation() -> None:
    names = {
        name: int(number)
        for module in (invariants, causes, features, recovery)
        for number, name in re.findall(
            r'Violation\(\s*(\d+), "([^"]+)"', Path(module.__file__ or "").read_text()
        )
    }
    everywhere = (*test_checker.FORGERIES, *test_checker_flows.FORGERIES, *FORGERIES)
    forged = {name for _, name, _ in everywhere}
    assert set(names) == forged | {"rows disagree"}  # see below
    assert set(names.values()) == set(range(1, 17))


def test_rows_that_disagree_are_a_violation_with_a_story(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with RecordingEnvironment(tmp_path).wrap(open_store(url)) as store:
        [answer] = store.enqueue([job()])
    with Plain(url) as plain:
        plain.rows("delete from tenure.ready")
    with pytest.raises(AssertionError) as raised:
        check(tmp_path, url, Expected(drained=False))
    first, *story = str(raised.value).splitlines()
    assert first.startswith(f"rows disagree (invariant 1): job {answer.id}: job {answer.id} stands")
    assert re.search(rf"process \d+ +enqueue -> job {answer.id}", story[0])
    assert story[-1].endswith("its row is live, token 1, 0 attempts, 0 crashes")


def told(forger: Forger, **expected: Any) -> list[str]:
    """What the checker prints."""
    books = Books(forger.records, forger.final)
    found = list(violations(books, Expected(**expected)))
    return list(report(books, found, expected.get("blows", ())))


def test_a_violation_is_told_with_its_story() -> None:
    forger = Forger()
    test_checker.stale_write_landed(forger)
    lines = [line.split(maxsplit=1) for line in told(forger, **struck(1003.7))]
    assert [" ".join(words) for words in lines] == [
        "stale write landed (invariant 4): job 1: save_checkpoint of w1 with token 1",
        "+0.000 process 1            enqueue -> job 1",
        "+1.000 w1 (101)             claim -> job 1, token 1 on lease 101",
        "+1.500 w1 (101)             job 1: the handler begins, token 1",
        "+2.000 w1 (101)             job 1: the handler ends, token 1",
        "+2.200 process 101          kill",
        "+31.000 database             job 1: crashed, token 1, of w1",
        "+32.500 w2 (102)             claim -> job 1, token 2 on lease 102",
        "+33.000 w1 (101)             job 1: save_checkpoint, token 1 -> landed",
        "+34.000 w2 (102)             job 1: settle succeed, token 2 -> landed",
        "+35.000 database             job 1: its row is succeeded, token 2, 2 attempts, 1 crashes",
    ]


def test_a_long_story_is_cut_to_what_matters() -> None:
    forger = Forger()
    forger.enqueue(1)
    forger.claim(1)
    for _ in range(30):
        forger.extend(101)
    forger.settle(1)
    forger.settle(1, worker="w2")
    forger.row(1)
    lines = told(forger)
    assert lines[0].startswith("settled twice (invariant 4): job 1")
    assert len(lines) == 6, "the heartbeats are left out"
    for token in range(2, 40):
        forger.event(1, token, "moved", None)
    forger.enqueue(1, created=False)
    books = Books(forger.records, forger.final)
    lines = list(report(books, [Violation(1, "anything", 1)]))
    assert len(lines) == 1 + 15
    assert lines[8].endswith("lines left out)")


def test_a_violation_at_a_gate_tells_of_all_who_were_there() -> None:
    forger = Forger()
    gate_exceeded(forger)
    lines = told(forger)
    assert lines[0] == "gate exceeded (invariant 10): job 2: 2 of 1 at strict 'k'"
    assert any("job 1: the handler begins" in line for line in lines)
    assert any("job 2: the handler begins" in line for line in lines)


def test_many_violations_are_counted() -> None:
    forger = Forger()
    for id in range(1, 31):
        forger.enqueue(id)
    lines = told(forger)
    assert sum(line.startswith("lost job") for line in lines) == 20
    assert lines[-1] == "and 10 more"
