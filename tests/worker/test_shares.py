"""How free capacity is divided between queues, for every mix of weights, limits and room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.tasks import Kind
from tenure.worker.claiming.slots import MAX_CLAIM, MAX_PREFETCH, PREFETCH_SECONDS, Pace, Shares

KINDS: tuple[Kind, ...] = ("async", "thread", "process")
QUEUES = ("a", "b", "c", "d", "e")

weights = st.dictionaries(
    st.sampled_from(QUEUES), st.integers(0, 200), min_size=1, max_size=len(QUEUES)
)
rooms = st.fixed_dictionaries({kind: st.integers(0, 300) for kind in KINDS})
kind_sets = st.frozensets(st.sampled_from(KINDS), min_size=1)


@st.composite
def situations(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, frozenset[Kind]]]:
    """Weights of some queues, and the kinds of handlers that each may need."""
    given_weights = draw(weights)
    return given_weights, {queue: draw(kind_sets) for queue in given_weights}


def limits_of(
    draw: st.DataObject, kinds: Mapping[str, frozenset[Kind]], room: Mapping[Kind, int]
) -> dict[str, int]:
    """Limits as the claimer has them: at least one, and never above the room of the queue."""
    limits = {}
    for queue, needed in kinds.items():
        most = min(room[kind] for kind in needed)
        if most > 0:
            limits[queue] = draw.draw(st.integers(1, most), label=f"limit of {queue}")
    return limits


@given(situations(), st.lists(rooms, min_size=1, max_size=6), st.data())
def test_nothing_is_exceeded_and_nothing_is_wasted(
    situation: tuple[dict[str, int], dict[str, frozenset[Kind]]],
    several: list[dict[Kind, int]],
    data: st.DataObject,
) -> None:
    given_weights, kinds = situation
    shares = Shares(given_weights)
    for room in several:
        limits = limits_of(data, kinds, room)
        asked = shares.divide(limits, room, kinds)
        assert set(asked) <= set(limits)
        for queue, share in asked.items():
            assert 1 <= share <= min(limits[queue], MAX_CLAIM)
        for kind in KINDS:
            taken = sum(share for queue, share in asked.items() if kind in kinds[queue])
            assert taken <= room[kind]
        if limits:
            assert asked, "there was room, and nobody was asked"


@given(situations(), rooms)
def test_what_is_left_over_is_divided_again(
    situation: tuple[dict[str, int], dict[str, frozenset[Kind]]], room: dict[Kind, int]
) -> None:
    """The claimer repeats it until nothing fits any more: so no capacity is wasted."""
    given_weights, kinds = situation
    shares, left = Shares(given_weights), dict(room)
    for _ in range(1000):
        limits = {q: min(left[kind] for kind in kinds[q]) for q in given_weights}
        limits = {q: limit for q, limit in limits.items() if limit > 0}
        asked = shares.divide(limits, left, kinds)
        if not asked:
            break
        for queue, share in asked.items():
            for kind in kinds[queue]:
                left[kind] -= share
    for queue in given_weights:
        assert min(left[kind] for kind in kinds[queue]) == 0


@settings(max_examples=40)
@given(
    st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 30), min_size=1, max_size=5),
    st.integers(1, 20),
)
def test_nobody_starves(given_weights: dict[str, int], room: int) -> None:
    """However little room there is and however small a weight: within some rounds all are asked."""
    shares = Shares(given_weights)
    kinds = dict.fromkeys(given_weights, frozenset[Kind]({"async"}))
    asked: Counter[str] = Counter()
    heaviest = max([1, *given_weights.values()])
    rounds = 4 * len(given_weights) * heaviest
    for _ in range(rounds):
        asked.update(shares.divide(dict.fromkeys(given_weights, room), {"async": room}, kinds))
    assert set(asked) == set(given_weights)


@given(st.dictionaries(st.sampled_from(QUEUES), st.integers(1, 20), min_size=2, max_size=4))
def test_busy_queues_share_by_weight(given_weights: dict[str, int]) -> None:
    """Over time, when all of them have more than enough to do."""
    shares = Shares(given_weights)
    kinds = dict.fromkeys(given_weights, frozenset[Kind]({"async"}))
    asked: Counter[str] = Counter()
    room = 100
    for _ in range(50):
        asked.update(shares.divide(dict.fromkeys(given_weights, room), {"async": room}, kinds))
    total = sum(given_weights.values())
    for queue, weight in given_weights.items():
        fair = 50 * room * weight / total
        assert abs(asked[queue] - fair) <= 0.1 * fair + 50 + room


@given(st.floats(1e-9, 1e6), st.integers(1, 100_000))
def test_the_prefetch_is_bounded_and_none_for_long_jobs(seconds: float, slots: int) -> None:
    pace = Pace()
    assert pace.prefetch("async", slots) == 0  # nothing is known yet
    pace.learn("async", seconds)
    ahead = pace.prefetch("async", slots)
    assert 0 <= ahead <= MAX_PREFETCH
    if seconds > PREFETCH_SECONDS:
        assert ahead == 0
    pace.slow_down("async")
    assert pace.prefetch("async", slots) == 0
