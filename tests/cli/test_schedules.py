"""Schedules on the command line: what is refused, and what a probe hears of late ticks."""

from __future__ import annotations

import pytest

from tenure.store import open_store
from tests.cli.schedule_cases import NIGHTLY
from tests.cli.terminal import run
from tests.cli.test_mistakes import fails
from tests.cli.world import World
from tests.support.stores import START

pytestmark = pytest.mark.slow  # processes, one per command


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("add", "s", "shop.greet", "--cron", "0 0 30 2 *"), 2, "0 0 30 2 *"),
        (("add", "s", "shop.greet", "--cron", "@daily", "--tz", "Mars/Base"), 2, "Mars/Base"),
        (("add", "s", "shop.greet"), 2, "every_seconds"),
        (("add", "s", "shop.none", "--app", "shop", "--cron", "@daily"), 3, "shop.none"),
        (("add", "nightly", "shop.greet", "--cron", "@daily"), 1, "nightly already"),
        (("edit", "nightly"), 2, "nothing to change: give an option such as --cron"),
        (("edit", "nightly", "--queue", "mail"), 2, "needs --task"),
        (("edit", "none", "--cron", "@daily"), 3, "no schedule none"),
        (("show", "none"), 3, "no schedule none"),
        (("remove", "nightly"), 2, "--yes"),
    ],
)
def test_mistakes(world: World, words: tuple[str, ...], code: int, text: str) -> None:
    with open_store(world.url) as store:
        store.add_schedule(NIGHTLY)
    fails("schedule", *words, code=code, texts=(text,), folder=world.folder, url=world.url)


def test_a_late_tick_is_ill_health(world: World) -> None:
    words = ("health", "--max-age-seconds", "600", "--json")
    with open_store(world.url) as store:
        store.add_schedule(NIGHTLY)
        assert run(*words, url=world.url, folder=world.folder).code == 0
        store.remove_schedule("nightly")
        store.add_schedule(NIGHTLY, now=START)
    done = run(*words, url=world.url, folder=world.folder)
    assert done.code == 1
    assert "schedule nightly has been due for" in done.lines[0]["problem"]
