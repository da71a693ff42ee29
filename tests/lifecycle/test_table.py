"""The transition table is consistent with itself, with the states and with the outcomes."""

from __future__ import annotations

from tenure.rules.job import FINAL_STATES, LIVE_STATES, State
from tenure.rules.lifecycle import TRANSITIONS, By, Outcome


def test_each_row_stands_under_its_own_name() -> None:
    assert all(name == row.name for name, row in TRANSITIONS.items())


def test_each_row_says_what_must_be_presented() -> None:
    assert all(row.presents for row in TRANSITIONS.values())


def test_sources_and_targets_are_states() -> None:
    states = frozenset(State)
    assert all(row.sources | row.targets <= states for row in TRANSITIONS.values())


def test_live_and_final_states_part_all_states() -> None:
    assert frozenset(State) == LIVE_STATES | FINAL_STATES
    assert not LIVE_STATES & FINAL_STATES
    assert all(state.final == (state in FINAL_STATES) for state in State)


def test_each_outcome_is_a_transition_of_a_worker_from_running() -> None:
    for outcome in Outcome:
        row = TRANSITIONS[outcome]
        assert row.sources == {State.RUNNING}
        assert row.by is By.WORKER
        assert row.presents == "token and lease"


def test_a_worker_makes_no_transition_but_claim_and_the_outcomes() -> None:
    by_worker = {name for name, row in TRANSITIONS.items() if row.by is By.WORKER}
    assert by_worker == set(Outcome) | {"claim"}


def test_every_state_can_be_reached_and_every_live_state_can_be_left() -> None:
    reached = {TRANSITIONS["enqueue"].name}
    states: set[State] = set(TRANSITIONS["enqueue"].targets)
    while more := {
        name for name, row in TRANSITIONS.items() if row.sources & states and name not in reached
    }:
        reached |= more
        states |= {state for name in more for state in TRANSITIONS[name].targets}
    assert reached == set(TRANSITIONS)
    assert states == set(State)


def test_from_every_live_state_some_chain_of_transitions_ends_the_job() -> None:
    ending: set[State] = set(FINAL_STATES)
    for _ in State:
        ending |= {
            state
            for row in TRANSITIONS.values()
            if row.by is not By.OPERATOR and row.targets & ending
            for state in row.sources
        }
    assert ending == set(State)


def test_only_the_enqueue_has_no_source_and_only_the_deletion_has_no_target() -> None:
    assert [name for name, row in TRANSITIONS.items() if not row.sources] == ["enqueue"]
    assert [name for name, row in TRANSITIONS.items() if not row.targets] == ["delete"]
