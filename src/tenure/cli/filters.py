"""The grammar that chooses jobs, the same for every command.

    123 124                     the jobs with these ids
    state=failed queue=mail     all jobs that match; several words mean "and", commas mean "or"
    all                         every job

Keys: state, queue, task.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from tenure.errors import InvalidInput
from tenure.rules.job import Job, State
from tenure.rules.limits import MAX_ID, check_name

if TYPE_CHECKING:
    from tenure.client import Client

PAGE = 1000
KEYS = ("state", "queue", "task")


class Filter(msgspec.Struct, frozen=True):
    """Which jobs to choose: by id, or by state, queue and task."""

    ids: tuple[int, ...] = ()
    states: frozenset[State] | None = None
    queues: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()

    def find(self, client: "Client", within: frozenset[State] | None = None) -> Iterator[Job]:
        """The jobs, newest first. Only jobs named by id may be in a state outside `within`."""
        if self.ids:
            for id in self.ids:
                yield client.get(id)
            return
        states = self.states
        if within is not None:
            states = within if states is None else states & within
        if states is not None and not states:
            return
        before: int | None = None
        while True:
            page = client.list_jobs(
                states=states, queue=_only(self.queues), task=_only(self.tasks), limit=PAGE,
                before=before,
            )  # fmt: skip
            yield from (job for job in page.jobs if self._matches(job))
            before = page.next
            if before is None:
                return

    def _matches(self, job: Job) -> bool:
        return (not self.queues or job.queue in self.queues) and (
            not self.tasks or job.task in self.tasks
        )


def _only(names: frozenset[str]) -> str | None:
    return next(iter(names)) if len(names) == 1 else None


def parse(words: Sequence[str], *, need: bool = False) -> Filter:
    """Read a filter. With `need`, an empty filter is refused: the user must write `all`."""
    if not words:
        if need:
            raise InvalidInput("which jobs? Give ids, or a filter such as state=failed, or `all`")
        return Filter()
    if list(words) == ["all"]:
        return Filter()
    if all(word.isascii() and word.isdigit() for word in words):
        return Filter(ids=tuple(dict.fromkeys(map(_id, words))))
    given: dict[str, frozenset[str]] = {}
    for word in words:
        key, equals, values = word.partition("=")
        if not equals or key not in KEYS or not values:
            known = ", ".join(f"{key}=..." for key in KEYS)
            raise InvalidInput(f"{word!r} is not a filter; write ids, `all`, or {known}")
        if key in given:
            raise InvalidInput(f"{key}= is given twice; write {key}=a,b to match either value")
        given[key] = frozenset(values.split(","))
    for key in ("queue", "task"):
        for name in given.get(key, ()):
            check_name(key, name)
    return Filter(
        states=_states(given["state"]) if "state" in given else None,
        queues=given.get("queue", frozenset()),
        tasks=given.get("task", frozenset()),
    )


def _id(word: str) -> int:
    if len(word) > len(str(MAX_ID)):
        raise InvalidInput(f"{word[:20]}... is too long for a job id; `tenure ls` shows ids")
    return int(word)


def _states(names: frozenset[str]) -> frozenset[State]:
    if unknown := sorted(names - set(State)):
        raise InvalidInput(f"unknown state {unknown[0]!r}; known states: {', '.join(State)}")
    return frozenset(State(name) for name in names)
