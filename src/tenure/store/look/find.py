"""`list_jobs`: one page of the jobs that match a filter, in an order, in bounded time.

A page looks at no more than `SCAN_ROWS` jobs and ends when `SCAN_SECONDS` are over. So it may have
fewer jobs than its limit, even none, and still have a `next`. A page covers every position between
its start and its `next`, live and finished jobs in one snapshot. So a job that moves from one table
to the other between two pages is neither lost nor seen twice.
"""

import time
from collections.abc import Collection, Iterator
from datetime import datetime
from operator import attrgetter
from typing import Literal, NamedTuple, Unpack

import msgspec

from tenure.errors import InvalidInput
from tenure.rules.filters import Fields, Filter, Order, Term, Text, filter_of, parse
from tenure.rules.filters.terms import Moment, Span
from tenure.rules.job import FINAL_STATES, LIVE_STATES, Job, State
from tenure.rules.limits import LONG_AGO, check_int
from tenure.rules.record import Record
from tenure.store.look.cursors import Cursor, read_cursor, write_cursor
from tenure.store.look.jobs import jobs_of
from tenure.store.look.records import JobRow
from tenure.store.look.walks import Plan, Position, Step, Walk
from tenure.store.session import Mode, Searching, Tx, as_records, to_json, transaction

MAX_PAGE = 1000
SCAN_ROWS = 20_000
"""The most jobs that one page looks at, whatever the filter."""
SCAN_SECONDS = 0.3
"""A page that takes longer ends with its current step."""
LEAST_STEP, LARGEST_STEP = 200, 4000
SLOW_STEP_SECONDS = 0.08

_by_position = attrgetter("position")

Orders = Order | Literal["newest", "oldest", "finished", "next"]


class Page(Record, msgspec.Struct, frozen=True):
    """Some jobs, in the order of the list: iterate over the page, or use `jobs`.

    Pass `next` as `after` to get the next page; None means that there is none. A page may hold
    fewer jobs than its limit, even none, and still have a `next`: each page looks at a bounded
    number of jobs, `looked_at`, and takes a bounded time.
    """

    jobs: tuple[Job, ...]
    next: str | None
    looked_at: int

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)


@transaction(Mode.READ)
async def list_jobs(
    tx: Tx,
    filter: str | Filter = "",
    *,
    order: Orders | None = None,
    limit: int = 100,
    after: str | None = None,
    states: Collection[State] | None = None,
    now: datetime | None = None,
    **fields: Unpack[Fields],
) -> Page:
    """Jobs that match the filter and all fields, one bounded page at a time.

    `filter` is text such as `state=failed created>2h`: see the reference of the filter language.
    `fields` are exact values, such as `queue="mail"` or `args={"user": 17}`; a list means one of
    its values. `order`: "newest" (the default), "oldest", "finished", or "next" for the head of a
    queue. Iterate over the page. Pass its `next` as `after` to get the next page, until it is None.
    """
    check_int("limit", limit, 1, MAX_PAGE)
    wanted = _wanted(filter, order, states, fields)
    tx.at(now)
    cursor = None if after is None else read_cursor(after, wanted)
    clock = await _clock(tx, cursor, wanted)
    plan = Plan(wanted.at(clock))
    start = None if cursor is None else cursor.position
    search = _Search(plan, limit)
    walks = plan.walks(start, clock, sorts_by_finish=tx.sorts_by_finish)
    rows, reached = await search.run(tx, walks)
    next = None if reached is None else write_cursor(reached, clock, wanted, plan.order)
    return Page(tuple(await jobs_of(tx, rows)), next, search.looked_at)


def _wanted(
    filter: str | Filter,
    order: Orders | None,
    states: Collection[State] | None,
    fields: Fields,
) -> Filter:
    """The whole filter, in which `order` stands as well."""
    wanted = filter if isinstance(filter, Filter) else parse(filter)
    wanted = wanted.joined(filter_of(fields))
    if states is not None:
        named = tuple(Text((str(State(state)),)) for state in states)
        if not named:
            raise InvalidInput("states is empty; leave it out for all states")
        wanted = wanted.joined(Filter((Term("state", named),)))
    if order is None:
        return wanted
    if order not in set(Order):
        raise InvalidInput(f"order must be one of {', '.join(Order)}, not {order!r:.60}")
    if wanted.order not in (None, order):
        raise InvalidInput(
            f"the filter says order={wanted.order}, and order is {order!s}: give one"
        )
    return Filter(wanted.terms, Order(order))


class _Hit(NamedTuple):
    """A job that matches, and where it stands in the list."""

    position: Position
    row: JobRow


class _Search:
    """One page in the making: merges the walks, and keeps to the bounds."""

    def __init__(self, plan: Plan, limit: int) -> None:
        self._plan = plan
        self._limit = limit
        self._hits: dict[int, _Hit] = {}
        self._scan = max(limit, LEAST_STEP)
        self.looked_at = 0

    async def run(self, tx: Tx, walks: list[Walk]) -> tuple[list[JobRow], Position | None]:
        """The rows of the page, and the position at which the next one starts; None: at the end.

        The walk that is furthest behind goes on, until it has passed enough rows, or until this
        page has looked at enough of them. Each walk goes one step at least.
        """
        began = time.monotonic()
        for walk in walks:
            if walk.ahead is not None:
                await self._step(tx, walk)
        while True:
            behind = self._furthest_behind(walks)
            hits = self._passed(behind)
            rows = [hit.row for hit in hits[: self._limit]]
            if len(hits) > self._limit:
                return rows, hits[self._limit - 1].position
            if behind is None or behind.ahead is None:
                return rows, None
            over = self.looked_at >= SCAN_ROWS or time.monotonic() - began >= SCAN_SECONDS
            if len(hits) == self._limit or over:
                return rows, behind.ahead
            await self._step(tx, behind)

    def _furthest_behind(self, walks: list[Walk]) -> Walk | None:
        going = [walk for walk in walks if walk.ahead is not None]
        if not going:
            return None
        pick = max if self._plan.descends else min
        return pick(going, key=lambda walk: walk.ahead or ())

    def _passed(self, behind: Walk | None) -> list[_Hit]:
        """The jobs that all walks have passed, in order."""
        hits = sorted(self._hits.values(), key=_by_position, reverse=self._plan.descends)
        if behind is None or behind.ahead is None:
            return hits
        edge = behind.ahead
        if self._plan.descends:
            return [hit for hit in hits if hit.position >= edge]
        return [hit for hit in hits if hit.position <= edge]

    async def _step(self, tx: Tx, walk: Walk) -> None:
        began = time.monotonic()
        scan = max(1, min(self._scan, SCAN_ROWS - self.looked_at))
        steps = await walk.step(tx, scan)
        found = await self._matching(tx, walk, steps) if steps else []
        looked_at = len(steps)
        if len(found) >= self._limit and found[-1].id != steps[-1].id:
            last = found[-1].id  # those behind it were not looked at
            looked_at = [step.id for step in steps].index(last) + 1
            walk.ahead = steps[looked_at - 1].position
        self.looked_at += looked_at
        step_of = {step.id: step for step in steps}
        for row in found:
            step = step_of[row.id]
            if step.token in (None, row.token):
                self._hits[row.id] = _Hit(step.position, row)
        self._set_pace(len(found), looked_at, time.monotonic() - began)

    def _set_pace(self, found: int, looked_at: int, seconds: float) -> None:
        if seconds > SLOW_STEP_SECONDS:
            self._scan = max(LEAST_STEP // 4, self._scan // 2)
        elif 4 * found < looked_at:
            self._scan = min(LARGEST_STEP, 2 * self._scan)

    async def _matching(self, tx: Tx, walk: Walk, steps: list[Step]) -> list[JobRow]:
        """Those of these jobs that match, in order, up to the limit."""
        found: list[JobRow] = []
        ids = [step.id for step in steps]
        for side in walk.sides:
            known = LIVE_STATES if side == "live" else FINAL_STATES
            states = self._plan.states & known
            search = Searching(self._plan.terms, side, oldest=self._plan.order is Order.OLDEST)
            params: dict[str, object] = {
                "tenant": tx.tenant, "most": self._limit,
                "states": None if states == known else " ".join(sorted(states)),
            }  # fmt: skip
            if walk.ranges:
                rows = await tx.search(
                    f"find_{side}", search, low=min(ids), high=max(ids), **params
                )
            else:
                rows = await tx.search(f"find_{side}_among", search, ids=to_json(ids), **params)
            found += as_records(JobRow, rows)
        if len(walk.sides) > 1:
            rank = {id: n for n, id in enumerate(ids)}
            found = sorted(found, key=lambda row: rank[row.id])[: self._limit]
        return found


async def _clock(tx: Tx, cursor: Cursor | None, wanted: Filter) -> datetime:
    """The time that the filter counts from. A filter without moments needs none."""
    if cursor is not None:
        return cursor.first_page_at
    bounds = [
        bound
        for term in wanted.terms for choice in term.choices if isinstance(choice, Span)
        for bound in (choice.low, choice.high)
    ]  # fmt: skip
    by_finish = wanted.order is Order.FINISHED or wanted.of("finished")
    if by_finish or any(isinstance(bound, Moment) for bound in bounds):
        [(now,)] = await tx.fetch("clock")
        return tx.when(now)
    return LONG_AGO
