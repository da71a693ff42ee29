"""The power goes at every sync. `python -m tests.power` for thousands of images."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.power.cuts import Seen, cut, one_each
from tests.power.disk import Disk, Event, Mode, Name, Sync, Write
from tests.power.play import Plan, play

EVERY = 3


def folders(tmp_path: Path) -> tuple[Path, Path]:
    """One to play in, one for images."""
    made = tmp_path / "play", tmp_path / "images"
    for folder in made:
        folder.mkdir()
    return made


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(EVERY))
def test_what_was_acknowledged_survives_and_the_rest_is_whole(
    tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stage, images = folders(tmp_path)
    seen = cut(play(Plan(seed=seed), stage), images, seed, one_each(seed, EVERY))
    with capsys.disabled():
        print(f"\npower loss, seed {seed}: {seen}")
    assert seen.violations == []
    assert seen.images.total() >= 70
    assert set(seen.images) == set(Mode)
    assert seen.jobs > 100


@pytest.mark.slow
def test_without_a_sync_for_each_commit_the_last_ones_may_be_lost_and_nothing_breaks(
    tmp_path: Path,
) -> None:
    """And the checks above can fail: the same play, asked for all that was acknowledged."""
    stage, images = folders(tmp_path)
    record = play(Plan(seed=1, operations=20, synchronous="NORMAL"), stage)
    assert cut(record, images, 1, one_each(0), kept=False).violations == []
    assert_lost(cut(record, images, 2, lambda _: [Mode.NOTHING]))


def assert_lost(seen: Seen) -> None:
    """Something that was acknowledged is missing, and nothing else is wrong."""
    assert any(" is lost" in text for text in seen.violations)
    assert not any("integrity" in text or "Error" in text for text in seen.violations)


def test_a_disk_that_lies_about_the_wal_is_found_out(tmp_path: Path) -> None:
    stage, images = folders(tmp_path)
    record = play(Plan(seed=1, operations=5), stage)
    assert_lost(
        cut(record, images, 1, lambda n: [Mode.NOTHING] * (n % 4 == 0), lies_about="jobs.db-wal")
    )


def test_a_disk_that_lies_about_checkpoints_is_found_out(tmp_path: Path) -> None:
    stage, images = folders(tmp_path)
    record = play(Plan(seed=1, operations=10, checkpoint_pages=20), stage)
    seen = cut(record, images, 1, lambda n: [Mode.SOME] * (n % 2), lies_about="jobs.db")
    assert any("integrity" in text or "intact" in text for text in seen.violations)


def test_an_image_has_all_that_was_synced_and_any_part_of_the_rest() -> None:
    file, data = 0, bytes(range(1, 256)) * 9
    events: list[Event] = [
        Name("a", file), Write(file, 0, b"safe"), Sync(file, with_folder=True),
        Write(file, 4, data), Name("a", None), Sync(1, with_folder=False),
    ]  # fmt: skip
    disk = Disk()
    stops = disk.play(events)
    assert next(stops) == 2
    assert disk.image(Mode.NOTHING, random.Random(1)) == {}
    assert disk.image(Mode.ALL, random.Random(1)) == {"a": b"safe"}
    assert next(stops) == 5
    assert disk.image(Mode.NOTHING, random.Random(1)) == {"a": b"safe"}
    assert disk.image(Mode.ALL, random.Random(1)) == {}
    found = [disk.image(Mode.TORN, random.Random(seed)).get("a") for seed in range(200)]
    assert None in found  # its name may be gone
    kept = {content for content in found if content is not None}
    assert all(content.startswith(b"safe") for content in kept)
    assert b"safe" in kept
    assert b"safe" + data in kept
    assert len(kept) > 20
