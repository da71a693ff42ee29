"""The demo's summary is true, whoever kills its workers and whenever; and false things are said.

The figures are compared with the rows of the database and the lines of the records, read here by
plain SQL and as plain JSON.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.verdict import RECORDS, judge
from tenure import Tenure
from tenure.testing.recorder import RecordingEnvironment
from tests.newcomer.conftest import OTHERS, PAGES, ROOT, Kept, figures
from tests.support.plain import Plain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.xdist_group("kept-demo")]

JOBS = PAGES + OTHERS


def lines(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every whole line of every record, with the process that wrote it."""
    for path in (folder / "records").iterdir():
        pid = 0
        for text in path.read_text().split("\n")[:-1]:
            line = json.loads(text)
            pid = line["pid"] if line["type"] == "begun" else pid
            yield pid, line


def unfinished(folder: Path, pids: set[int]) -> set[tuple[int, int]]:
    """Process and job of every handler that began in one of these processes, and did not end."""
    found: set[tuple[int, int, int]] = set()
    for pid, line in lines(folder):
        if pid in pids and line["type"] == "started":
            found.add((pid, line["id"], line["token"]))
        if pid in pids and line["type"] == "ended":
            found.remove((pid, line["id"], line["token"]))
    return {(pid, id) for pid, id, _ in found}


def killed_of(kept: Kept) -> tuple[set[int], set[int]]:
    """Everybody who was killed, and the one whom the demo itself has killed.

    That is one of ours if both had the same thought at the same moment.
    """
    told = {int(pid) for pid in re.findall(r"SIGKILL to worker (\d+)", kept.printed)}
    by_demo = told - kept.killed_by_us
    assert len(by_demo) <= 1
    return told | kept.killed_by_us, by_demo or told


def test_a_demo_with_workers_killed_at_any_moment_accounts_for_every_job(kept: Kept) -> None:
    assert kept.status == 0, kept.printed
    assert kept.killed_by_us, "nobody was killed from outside"
    assert "every job is accounted for" in kept.printed
    assert "NOT" not in kept.printed
    assert "\x1b" not in kept.printed  # nothing is painted where nobody looks
    assert "\r" not in kept.printed


def test_the_figures_of_the_jobs_are_those_of_the_database(kept: Kept) -> None:
    with Plain(f"sqlite:///{kept.folder / 'jobs.db'}") as plain:
        rows = plain.rows("select task, state, args, result from tenure.history")
        left = plain.one("select count(*) from tenure.job")
        happened = plain.rows("select distinct kind, job_id from tenure.event")
    succeeded = [row for row in rows if row[1] == "succeeded"]
    assert figures(kept.printed, "jobs") == [JOBS, len(succeeded), left, JOBS - len(rows) - left]
    assert (len(succeeded), left) == (JOBS, 0)
    kinds = [kind for kind, _ in happened]
    assert figures(kept.printed, "errors") == [kinds.count("retried")]
    assert figures(kept.printed, "dead letters") == [kinds.count("replayed")] == [6]
    pages = {
        json.loads(args)["page"]: json.loads(result)
        for task, _, args, result in rows
        if "page" in args
    }
    assert pages == {page: page * page for page in range(1, PAGES + 1)}
    books = [set(json.loads(row[3])) for row in rows if "chapters" in row[2]]
    assert figures(kept.printed, "long jobs") == [sum(len(each) > 1 for each in books), 3]


def test_the_figures_of_the_kills_are_those_of_the_records_and_the_database(kept: Kept) -> None:
    killed, by_demo = killed_of(kept)
    with Plain(f"sqlite:///{kept.folder / 'jobs.db'}") as plain:
        crashed = plain.rows("select job_id, worker from tenure.event where kind = 'crashed'")
    assert {int(worker.split("-")[-2]) for _, worker in crashed} <= killed
    running = unfinished(kept.folder, killed)
    assert figures(kept.printed, "SIGKILL") == [
        len(killed), len({id for id, _ in crashed}), len({id for _, id in running})
    ]  # fmt: skip
    assert {id for _, id in running} <= {id for id, _ in crashed}
    assert by_demo & {pid for pid, _ in running}, "the demo has killed a worker that did nothing"


def test_the_figures_of_the_checker_are_those_of_the_records(kept: Kept) -> None:
    found = list(lines(kept.folder))
    sent = [pid for pid, line in found if line["type"] == "sent"]
    started = [pid for pid, line in found if line["type"] == "started"]
    assert figures(kept.printed, "checked") == [len(sent), len(started), len(set(sent))]


def test_what_is_said_of_a_kill_is_what_the_database_held(kept: Kept) -> None:
    """Beside the summary. Fewer, if the demo was held up until some were back in line."""
    with Plain(f"sqlite:///{kept.folder / 'jobs.db'}") as plain:
        crashed = plain.rows("select worker from tenure.event where kind = 'crashed'")
    pids = [int(worker.split("-")[-2]) for (worker,) in crashed]
    said = re.findall(r"SIGKILL to worker (\d+), which has (\d+) jobs?", kept.printed)
    assert said
    for pid, count in said:
        assert int(count) <= pids.count(int(pid))


# --- a summary that would be false ----------------------------------------------------------------


def a_job_is_removed(folder: Path) -> None:
    with Plain(f"sqlite:///{folder / 'jobs.db'}") as plain:
        plain.rows("delete from tenure.history where id = (select max(id) from tenure.history)")


def a_job_is_left(folder: Path) -> None:
    with Tenure(f"sqlite:///{folder / 'jobs.db'}") as app:
        RecordingEnvironment(folder / RECORDS).record(app)
        app.replay(app.list_jobs(limit=1).jobs[0].id)


def a_job_was_replayed_in_secret(folder: Path) -> None:
    with Tenure(f"sqlite:///{folder / 'jobs.db'}") as app:
        app.replay(app.list_jobs(limit=1).jobs[0].id)


def a_job_came_from_nowhere(folder: Path) -> None:
    with Tenure(f"sqlite:///{folder / 'jobs.db'}") as app:
        app.task(name="stranger")(print).enqueue()


def a_job_is_noted_as_failed(folder: Path) -> None:
    set_in_newest(folder, "state", "failed")


def a_result_is_edited(folder: Path) -> None:
    set_in_newest(folder, "result", "1")


def a_count_of_attempts_is_edited(folder: Path) -> None:
    set_in_newest(folder, "attempts", 7)


def set_in_newest(folder: Path, column: str, value: object) -> None:
    with Plain(f"sqlite:///{folder / 'jobs.db'}") as plain:
        newest = plain.one("select max(id) from tenure.history")
        plain.rows(f"update tenure.history set {column} = ? where id = ?", value, newest)


def a_kill_is_not_owned_up_to(folder: Path) -> None:
    edit_script(folder, killed=[])


def a_dead_letter_is_not_replayed(folder: Path) -> None:
    edit_script(folder, shelves=7)


def edit_script(folder: Path, **changes: object) -> None:
    path = folder / "script.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def a_claim_is_taken_out_of_the_records(folder: Path) -> None:
    edit_records(folder, lambda line: None if line.get("granted") else line)


def a_settlement_in_the_records_is_another_one(folder: Path) -> None:
    edit_records(folder, lambda line: line | {"outcomes": ["fail"] * len(line.get("outcomes", []))})


def a_handler_ran_twice(folder: Path) -> None:
    """Under one token, in two processes."""
    [path, *_] = sorted((folder / "records").iterdir())
    _, started = next(each for each in lines(folder) if each[1]["type"] == "started")
    with path.open("a") as file:
        file.write(json.dumps(started) + "\n")


def edit_records(folder: Path, edit: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    for path in (folder / "records").iterdir():
        edited = [edit(json.loads(text)) for text in path.read_text().split("\n")[:-1]]
        path.write_text("".join(json.dumps(line) + "\n" for line in edited if line is not None))


@pytest.mark.parametrize(
    ("tamper", "told"),
    [
        (a_job_is_removed, "1 jobs are missing"),
        (a_job_is_left, "backlog left"),
        (a_job_was_replayed_in_secret, "replayed by nobody"),
        (a_job_came_from_nowhere, "more than it was enqueued"),
        (a_job_is_noted_as_failed, "is failed"),
        (a_result_is_edited, "with the result"),
        (a_count_of_attempts_is_edited, "attempts do not add up"),
        (a_kill_is_not_owned_up_to, "unexplained crash"),
        (a_dead_letter_is_not_replayed, "6 jobs were replayed, not 7"),
        (a_claim_is_taken_out_of_the_records, "run without a claim"),
        (a_settlement_in_the_records_is_another_one, "end without a settlement"),
        (a_handler_ran_twice, "run twice"),
    ],
)
def test_what_is_not_as_it_should_be_is_found(
    kept: Kept, tmp_path: Path, tamper: Callable[[Path], None], told: str
) -> None:
    folder = shutil.copytree(kept.folder, tmp_path / "copy")
    assert judge(folder).is_good
    tamper(folder)
    verdict = judge(folder)
    assert not verdict.is_good
    assert verdict.lines[0] == "NOT every job is accounted for"
    assert told in "\n".join(verdict.lines)


def test_the_exit_status_is_that_of_the_verdict(kept: Kept, tmp_path: Path) -> None:
    folder = shutil.copytree(kept.folder, tmp_path / "copy")
    good = check_again(folder)
    without_asserts = check_again(folder, "-O")
    a_job_is_removed(folder)
    bad = check_again(folder)
    assert (good.returncode, bad.returncode, without_asserts.returncode) == (0, 1, 1)
    assert good.stdout.strip() in kept.printed
    assert "run Python without -O" in without_asserts.stdout
    assert bad.stdout.strip().startswith("NOT every job is accounted for\n")


def check_again(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-m", "examples.demo", "--check", folder],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
