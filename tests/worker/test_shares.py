"""How the free slots of a kind are divided between queues, for every mix of weights and limits."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure import Tenure
from tenure.rules.claim import Kind
from tenure.worker.claiming.slots import (
    MAX_CLAIM,
    MAX_PREFETCH,
    MIX_JOBS,
    PREFETCH_SECONDS,
    Pace,
    QueueKinds,
    Shares,
)

QUEUES = ("a", "b", "c", "d", "e")

weights = st.dictionaries(
    st.sampled_from(QUEUES), st.integers(0, 200), min_size=1, max_size=len(QUEUES)
)


@given(weights, st.lists(st.integers(0, 300), min_size=1, max_size=6), st.data())
def test_nothing_is_exceeded_and_nothing_is_wasted(
    given_weights: dict[str, int], rooms: list[int], data: st.DataObject
) -> None:
    shares = Shares(given_weights)
    for room in rooms:
        limits = {
            queue: data.draw(st.integers(1, 300), label=f"limit of {queue}")
            for queue in given_weights
        }
        asked = shares.divide("async", limits, room)
        assert set(asked) <= set(limits)
        assert all(1 <= share <= min(limits[q], MAX_CLAIM) for q, share in asked.items())
        assert sum(asked.values()) <= room
        assert bool(asked) == (room > 0), "there was room, and no queue was asked"


@given(weights, st.integers(0, 300))
def test_what_is_left_over_is_divided_again(given_weights: dict[str, int], room: int) -> None:
    """The claimer repeats it until nothing fits any more: so no capacity is wasted."""
    shares = Shares(given_weights)
    for _ in range(1000):
        asked = shares.divide("async", dict.fromkeys(given_weights, room), room)
        if not asked:
            break
        room -= sum(asked.values())
    assert room == 0


@settings(max_examples=40)
@given(
    st.dictionaries(st.sampled_from(QUEUES), st.integers(0, 30), min_size=1, max_size=5),
    st.integers(1, 20),
)
def test_nobody_starves(given_weights: dict[str, int], room: int) -> None:
    """However little room there is and however small a weight: within some rounds all are asked."""
    shares = Shares(given_weights)
    asked: Counter[str] = Counter()
    heaviest = max([1, *given_weights.values()])
    rounds = 4 * len(given_weights) * heaviest
    for _ in range(rounds):
        asked.update(shares.divide("async", dict.fromkeys(given_weights, room), room))
    assert set(asked) == set(given_weights)


@given(st.dictionaries(st.sampled_from(QUEUES), st.integers(1, 20), min_size=2, max_size=4))
def test_busy_queues_share_by_weight(given_weights: dict[str, int]) -> None:
    """Over time, when all of them have more than enough to do. Kinds do not share their credit."""
    shares = Shares(given_weights)
    asked: Counter[str] = Counter()
    room = 100
    for _ in range(50):
        asked.update(shares.divide("async", dict.fromkeys(given_weights, room), room))
        shares.divide("thread", dict.fromkeys(given_weights, 1), 1)
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


# --- the kinds of jobs that were enqueued by name ------------------------------------------------

ALL: tuple[Kind, ...] = ("async", "thread", "process")
ROOM: dict[Kind, int] = {"async": 500, "thread": 8, "process": 1}
rooms = st.fixed_dictionaries({kind: st.integers(0, 1000) for kind in ALL})


def kinds_of_three() -> QueueKinds:
    """An application with a task of each kind, which has no database."""
    app = Tenure("sqlite:///never-opened.db")

    @app.task(name="a")
    async def in_loop() -> None: ...

    @app.task(name="b")
    def in_thread() -> None: ...

    @app.task(name="c", isolation="process")
    def in_child() -> None: ...

    return QueueKinds(app, ["q"])


@given(st.lists(st.tuples(st.sampled_from(ALL), st.integers(1, 1000)), max_size=20), rooms)
def test_about_as_many_of_each_kind_are_claimed_as_there_is_room_for(
    came: list[tuple[Kind, int]], room: dict[Kind, int]
) -> None:
    """If they come as the last ones did. Of a kind that has no room and has come lately, none."""
    kinds = kinds_of_three()
    for kind, jobs in came:
        kinds.learn_unsure("q", kind, jobs)
    mix = kinds._mix["q"]
    most = kinds.most_unsure("q", room)
    assert 0 < mix.total() <= MIX_JOBS
    assert all(most * mix[kind] <= room[kind] * mix.total() for kind in ALL)
    assert most >= min(room.values())


def test_an_unused_kind_is_forgotten_soon() -> None:
    kinds, claimed = kinds_of_three(), []
    for _ in range(10):
        claimed.append(min(500, kinds.most_unsure("q", ROOM)))
        kinds.learn_unsure("q", "async", claimed[-1])
    assert claimed == [3, 6, 12, 24, 48, 96, 192, 384, 500, 500]


def test_a_rare_kind_does_not_count_much() -> None:
    kinds = kinds_of_three()
    kinds.learn_unsure("q", "async", 2000)
    kinds.learn_unsure("q", "process", 1)
    assert kinds.most_unsure("q", ROOM) >= 500
    kinds.learn_unsure("q", "process", 499)
    assert kinds.most_unsure("q", ROOM) <= 3
