"""The commands about schedules, in a terminal and as --json."""

from __future__ import annotations

from typing import Any

from tenure.rules.codec import encode
from tenure.rules.job import NewJob, State
from tenure.rules.ticks import ScheduleTiming, fired_by
from tenure.store import NewSchedule, ScheduleInfo, open_store
from tests.cli.cases import Act, Case, Look, shows, tells
from tests.cli.world import World

NIGHTLY = NewSchedule(
    name="nightly",
    timing=ScheduleTiming(cron="0 3 * * *", tz="Asia/Tokyo"),
    job=NewJob(task="shop.greet", args=encode({"name": "Ada"})),
)


def _nightly(world: World) -> None:
    """There is one schedule."""
    with open_store(world.url) as store:
        store.add_schedule(NIGHTLY)


def _paused(world: World) -> None:
    _nightly(world)
    with open_store(world.url) as store:
        store.pause_schedule("nightly", reason="no guests")


def _ran(world: World) -> None:
    _nightly(world)
    with open_store(world.url) as store:
        store.trigger_schedule("nightly")


def _stored(world: World, name: str = "nightly") -> ScheduleInfo:
    with open_store(world.url) as store:
        return store.get_schedule(name)


def _is(**values: Any) -> Act:
    """Afterwards the schedule has these values."""

    def act(world: World) -> None:
        info = _stored(world)
        for name, value in values.items():
            holder = info if hasattr(info, name) else info.timing
            assert getattr(holder, name) == value, name

    return act


def _says(act: Act, **values: Any) -> Look:
    """The answer has these values, and so has the database."""

    def look(lines: list[Any], world: World) -> None:
        [line] = lines
        assert {name: line[name] for name in values} == values
        act(world)

    return look


def _listed(lines: list[Any], world: World) -> None:
    [line] = lines
    info = _stored(world)
    assert (line["name"], line["task"], line["args"]) == ("nightly", "shop.greet", {"name": "Ada"})
    assert (line["cron"], line["tz"], line["catch_up"]) == ("0 3 * * *", "Asia/Tokyo", "latest")
    assert line["words"] == "At 03:00 every day, Asia/Tokyo"
    assert info.next_at is not None
    assert line["next_at"] == info.next_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert line["next"] == [line["next_at"]]


def _shown(lines: list[Any], world: World) -> None:
    [line] = lines
    assert len(line["next"]) == 3
    [run] = line["runs"]
    assert (run["job_id"], run["triggered"]) == (_stored(world).last_job_id, True)
    assert run["state"] == State.QUEUED


def _triggered(lines: list[Any], world: World) -> None:
    [line] = lines
    by = fired_by(world.job(line["id"]).metadata_json)
    assert by is not None
    assert (by.name, by.triggered) == ("nightly", True)


def _one_more(world: World) -> None:
    assert _stored(world).last_job_id not in {None, *world.ids}


def _is_gone(world: World) -> None:
    with open_store(world.url) as store:
        assert store.list_schedules() == []


def _gone(lines: list[Any], world: World) -> None:
    assert lines == [{"name": "nightly", "removed": True}]
    _is_gone(world)


ADDED = {"task": "shop.greet", "cron": "0 3 * * *", "tz": "Asia/Tokyo", "overlap": "skip"}
ADD = ("schedule", "add", "nightly", "shop.greet", "--app", "shop:app", "--args",
       '{"name": "Ada"}', "--cron", "0 3 * * *", "--tz", "Asia/Tokyo", "--overlap",
       "skip")  # fmt: skip

SCHEDULE_CASES: dict[str, Case] = {
    "schedule list": Case(
        shows("schedule", "list", before=_paused,
              texts=["nightly", "shop.greet", "At 03:00", "paused"]),
        tells("schedule", "list", before=_nightly, look=_listed),
    ),
    "schedule show": Case(
        shows("schedule", "show", "nightly", before=_ran,
              texts=["At 03:00 every day, Asia/Tokyo", "next", "in Asia/Tokyo", "run", "triggered",
                     "queued"]),
        tells("schedule", "show", "nightly", "--next", "3", before=_ran, look=_shown),
    ),
    "schedule add": Case(
        shows(*ADD, texts=["schedule nightly is added", "At 03:00 every day"], after=_is(**ADDED)),
        tells(*ADD, look=_says(_is(**ADDED), **ADDED)),
    ),
    "schedule edit": Case(
        shows("schedule", "edit", "nightly", "--every-seconds", "90", before=_nightly,
              texts=["is changed", "Every 90 seconds"], after=_is(cron=None, every_seconds=90)),
        tells("schedule", "edit", "nightly", "--task", "shop.send", "--args", '{"to":"me"}',
              before=_nightly, look=_says(_is(args={"to": "me"}, cron="0 3 * * *"),
                                          task="shop.send", args={"to": "me"})),
    ),
    "schedule pause": Case(
        shows("schedule", "pause", "nightly", "--reason", "no guests", before=_nightly,
              texts=["nightly is paused"], after=_is(reason="no guests", next_at=None)),
        tells("schedule", "pause", "nightly", before=_nightly,
              look=_says(_is(next_at=None), next_at=None, reason=None)),
    ),
    "schedule resume": Case(
        shows("schedule", "resume", "nightly", before=_paused, texts=["is resumed", "next tick"],
              after=_is(paused_at=None)),
        tells("schedule", "resume", "nightly", before=_paused,
              look=_says(_is(paused_at=None), paused_at=None, reason=None)),
    ),
    "schedule trigger": Case(
        shows("schedule", "trigger", "nightly", before=_paused, texts=["job "], after=_one_more),
        tells("schedule", "trigger", "nightly", before=_nightly, look=_triggered),
    ),
    "schedule remove": Case(
        shows("schedule", "remove", "nightly", before=_nightly, answer="y\n",
              texts=["Remove schedule nightly", "is removed"], after=_is_gone),
        tells("schedule", "remove", "nightly", "--yes", before=_nightly, look=_gone),
    ),
}  # fmt: skip
