"""What users get wrong: one clear line on stderr with the fix, and the right exit code.

Mistakes are made as people make them, and with --json, where the line is an object; most in both
ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tenure.store import open_store
from tests.cli.terminal import Done, run
from tests.cli.world import World
from tests.support.plain import Plain
from tests.support.postgres import Server, database_name

pytestmark = pytest.mark.slow  # processes, one per command

QUICK = {"TENURE_GIVE_UP_SECONDS": "0.2"}


def fails(
    *words: str, code: int, texts: tuple[str, ...], folder: Path, url: str | None = None
) -> None:
    """Both forms, with the same message."""
    message = fails_in_words(*words, code=code, texts=texts, folder=folder, url=url)
    assert message == fails_in_json(*words, code=code, texts=texts, folder=folder, url=url)


def fails_in_words(
    *words: str, code: int, texts: tuple[str, ...], folder: Path, url: str | None = None
) -> str:
    """One line that has these texts, nothing on stdout, and this exit code."""
    plain = run(*words, url=url, folder=folder, env=QUICK)
    assert (plain.code, plain.out) == (code, ""), plain
    assert plain.err.startswith("tenure: "), plain.err
    assert plain.err.count("\n") == 1, plain.err
    for text in texts:
        assert text in plain.err
    return plain.err.removeprefix("tenure: ").rstrip("\n")


def fails_in_json(
    *words: str, code: int, texts: tuple[str, ...], folder: Path, url: str | None = None
) -> str:
    """The same as an object on one line."""
    told = run(*words, "--json", url=url, folder=folder, env=QUICK)
    assert (told.code, told.out) == (code, ""), told
    assert set(told.error) == {"error", "kind", "exit_code"}
    assert told.error["exit_code"] == code
    assert told.error["kind"][0].isupper()
    message = str(told.error["error"])
    for text in texts:
        assert text in message
    return message


def test_no_database_is_named(tmp_path: Path) -> None:
    texts = ("no database is given", "--url", "TENURE_URL", "pyproject.toml")
    fails("ls", code=2, texts=texts, folder=tmp_path)


@pytest.mark.parametrize(
    ("url", "code", "text"),
    [
        ("mysql://bob:secret@host/jobs", 2, "must start with sqlite:/// or postgresql://"),
        ("sqlite://jobs.db", 2, "write sqlite:///jobs.db"),
        ("sqlite:///no/such/folder/jobs.db", 4, "there is no folder no/such/folder; create it"),
        ("sqlite:///misspelt.db", 4, "there is no file misspelt.db; `tenure db init` creates it"),
        ("postgresql://bob:secret@127.0.0.1:1/jobs", 4, "start the server, or check the host"),
    ],
)  # fmt: skip
def test_a_wrong_url(url: str, code: int, text: str, tmp_path: Path) -> None:
    fails("stats", code=code, texts=(text,), folder=tmp_path, url=url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [("db", "migrate"), ("doctor",), ("enqueue", "a.b"), ("prune", "--yes"),
              ("copy", "--yes", "--from", "sqlite:///misspelt.db", "--to", "sqlite:///b.db")]
)  # fmt: skip
def test_nothing_creates_a_file_by_mistake(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*words, url="sqlite:///misspelt.db", folder=tmp_path)
    assert done.code == (1 if words == ("doctor",) else 4)
    assert "there is no file misspelt.db" in done.out + done.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("dear diary " * 100)
    texts = ("is not a SQLite database; check the URL",)
    fails("ls", code=4, texts=texts, folder=tmp_path, url="sqlite:///notes.txt")


def test_a_schema_of_the_future(world: World) -> None:
    with Plain(world.url) as plain:
        plain.rows("update tenure.schema_version set version = 99, min_code = 99")
    fails("ls", code=5, texts=("Upgrade the tenure package",), folder=world.folder, url=world.url)
    doctor = run("doctor", "--json", folder=world.folder, url=world.url)
    assert doctor.code == 1
    assert [line["check"] for line in doctor.lines if not line["ok"]] == ["schema"]


def test_a_schema_of_the_past(pg_world: World) -> None:
    with Plain(pg_world.url) as plain:
        plain.rows("update tenure.schema_version set version = 0, min_code = 0")
    texts = ("the schema is at version 0",)
    fails("ls", code=5, texts=texts, folder=pg_world.folder, url=pg_world.url)


def test_a_database_without_a_schema(pg_url: str, tmp_path: Path) -> None:
    fails("ls", code=5, texts=("no Tenure schema yet",), folder=tmp_path, url=pg_url)
    doctor = run("doctor", folder=tmp_path, url=pg_url)
    assert doctor.code == 1
    assert "FAIL  schema" in doctor.out
    assert "ok    database" in doctor.out


@pytest.fixture
def login(pg_server: Server, pg_migrated_url: str) -> Iterator[str]:
    """The address of a migrated database for a role that needs its password."""
    hba = pg_server.directory / "data" / "pg_hba.conf"
    before = hba.read_text()
    name = f"clerk_{database_name(pg_migrated_url)}"
    with psycopg.connect(pg_server.url(), autocommit=True) as admin:
        admin.execute(f"create role {name} login superuser password 'tall-secret'")
        hba.write_text(f"host all {name} 127.0.0.1/32 scram-sha-256\n{before}")
        admin.execute("select pg_reload_conf()")
        address = f"127.0.0.1:{pg_server.port}/{database_name(pg_migrated_url)}"
        yield f"postgresql://{name}:tall-secret@{address}"
        hba.write_text(before)
        admin.execute("select pg_reload_conf()")
        admin.execute(f"drop role {name}")


def test_a_wrong_password_or_database(login: str, tmp_path: Path) -> None:
    wrong = login.replace("tall-secret", "small-secret")
    for url, text in ((wrong, "password authentication failed"), (f"{login}x", "does not exist")):
        fails("ls", code=4, texts=(text,), folder=tmp_path, url=url)


def test_a_password_is_never_shown(login: str, tmp_path: Path) -> None:
    shown = login.replace(":tall-secret@", "@")
    for url, words in (
        (login, ("doctor",)), (login, ("db", "status", "--json")), (login, ("top", "--once")),
        (f"{shown}?password=tall-secret", ("db", "migrate", "--json")),
    ):  # fmt: skip
        done = run(*words, url=url, folder=tmp_path)
        assert done.code == 0, done
        assert shown in done.out
        assert "secret" not in done.out + done.err
    for url in (
        login.replace("127.0.0.1", "127.0.0.1:tall-secret"),
        login.replace("tall-secret", "tall-sec/ret"),
        f"{login}?password=tall-secret&nonsense=1",
    ):
        done = run("ls", "--json", url=url, folder=tmp_path, env=QUICK)
        assert done.code in (2, 4), done
        assert not any(part in done.out + done.err for part in ("secret", "sec/ret", "tall"))


@pytest.mark.parametrize(
    ("words", "code", "texts"),
    [
        (("get", "99"), 3, ("there is no job 99",)),
        (("why", "99"), 3, ("there is no job 99",)),
        (("rm", "1", "99", "--yes"), 3, ("there is no job 99",)),
        (("hold", "1"), 3, ("there is no live job 1; look at its state first",)),
        (("gate", "show", "none"), 3, ("there is no gate none",)),
        (("gate", "set", "none", "--rate", "1"), 3, ("there is no gate none",)),
        (("gate", "reset", "none"), 3, ("there is no gate none",)),
        (("workflow", "show", "99"), 3, ("there is no workflow 99",)),
        (("rm", "5", "--yes"), 2, ("job 5 is not finished; cancel it first",)),
        (("get", "first"), 2, ("'first' is not a valid integer; see `tenure get --help`",)),
        (("get",), 2, ("Missing argument 'ID'",)),
        (("enqueue", "shop.greet", "--args", "{name}"), 2, ("--args is not JSON",)),
        (("enqueue", "shop.greet", "--args", "[1]"), 2, ("must be a JSON object",)),
        (("enqueue", "shop greet"), 2, ("not a valid name",)),
        (("enqueue", "a.b", "--priority", "200"), 2, ("priority must be", "-100 to 100")),
        (("enqueue", "shop.gret", "--app", "shop"), 3,
         ("no task 'shop.gret'; did you mean shop.greet?",)),
        (("enqueue", "shop.greet", "--app", "shop", "--args", '{"nam": "Ada"}'), 2,
         ("--args does not fit shop.greet", "nam")),
        (("enqueue", "shop.greet", "--app", "shop", "--args", '{"name": 1}'), 2,
         ("--args does not fit shop.greet", "Expected `str`, got `int` - at `$.name`")),
        (("ls", "colour=red"), 2, ("at character 1: there is no field 'colour'", "state, queue,")),
        (("ls", "state=faild"), 2, ("unknown state 'faild'", "queued", "failed")),
        (("ls", "queue=a b"), 2, ("'b' is not a filter", "double quotes")),
        (("ls", 'queue="a b"'), 2, ("at character 7: ", "not a valid name")),
        (("cancel", "statt=failed"), 2, ("did you mean state?",)),
        (("ls", "--after", "x"), 2, ("not the `next` of a page",)),
        (("cancel",), 2, ("which jobs?", "state=failed", "`all`")),
        (("ls", "--limt", "3"), 2, ("No such option '--limt'. Did you mean '--limit'?",)),
        (("ls", "--limit", "-1"), 2, ("-1 is not in the range",)),
        (("sl",), 2, ("no command 'sl'. Did you mean `tenure ls`? See `tenure --help`",)),
        (("db", "stats"), 2, ("'stats'. Did you mean 'status'? See `tenure db --help`",)),
        (("move", "5"), 2, ("--queue, --priority or --due-at",)),
        (("move", "5", "--due-at", "soon"), 2, ("--due-at is not a time", "2030-01-31T08:00")),
        (("move", "5", "--due-at", "2100-01-31T08:00"), 2, ("needs an offset from UTC",)),
        (("prune", "--other-days", "nan"), 2, ("nan is not allowed; give a number",)),
        (("stats", "--since", "noon"), 2, ("'noon' is not a time; write 2h",)),
        (("--tenant", "acme", "workers"), 2, ("tenant",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)  # fmt: skip
def test_a_wrong_word(
    words: tuple[str, ...], code: int, texts: tuple[str, ...], world: World
) -> None:
    fails_in_words(*words, code=code, texts=texts, folder=world.folder, url=world.url)
    with open_store(world.url) as store:
        assert {job.id for job in store.list_jobs().jobs} == world.ids


MODULES = {
    "empty": "",
    "pair": "from tenure import Tenure\none = Tenure()\ntwo = Tenure()\n",
    "broken": "import json\n\njson.loads('nonsense')\n",
    "needy": "import no_such_library\n",
    "typo": "def f(:\n",
    "leaver": "import sys\nsys.exit(7)\n",
    "factory": "from tenure import Tenure\ndef create_app(): return Tenure()\n",
    "made": "from tenure import Tenure\ndef app(): return Tenure()\n",
    "other": "app = dict()\n",
    "bare": "from tenure import Tenure\napp = Tenure()\n\n@app.task\ndef f(): ...\n",
}


FACTORY = (
    "create_app is a function; write `app = create_app()` in factory, then `tenure worker "
    "factory:app`"
)


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ((), ("no application is given", "MODULE:NAME", "TENURE_APP")),
        (("nope",), ("there is no module nope; run the command in the folder that contains it",)),
        (("shop.nope:app",), ("shop.nope",)),
        (("pair.py",), ("there is no module pair.py; write pair",)),
        (("pair.one",), ("there is no module pair.one; write pair:one",)),
        (("bare",), ("write @app.task() with parentheses", "bare.py, line 4)")),
        (("empty",), ("empty has no application; add app = Tenure(...) to it",)),
        (("factory",), (FACTORY,)),
        (("factory:app",), (FACTORY,)),
        (("factory:create_app",), (FACTORY,)),
        (("factory:create_app()",), (FACTORY,)),
        (("made:app",), ("app is a function; write `jobs = app()` in made, then", "made:jobs`")),
        (("other:app",), ("other:app is of type dict, not Tenure; add app = Tenure(...) to",)),
        (("pair",), ("pair has several applications; write pair:one or pair:two",)),
        (("pair:three",), ("no application called three; write pair:one or pair:two",)),
        (("broken",), ("broken cannot be imported: JSONDecodeError", "broken.py, line 3)")),
        (("needy",), ("needy cannot be imported", "no_such_library", "needy.py, line 1)")),
        (("typo",), ("typo cannot be imported: SyntaxError", "line 1)")),
        (("leaver",), ("leaver cannot be imported: SystemExit: 7",)),
        (("shop", "-q", "gpu=many"), ("'gpu=many': slots must be a whole number, as in gpu=1",)),
        (("shop", "--lease-seconds", "5"), ("two heartbeats",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)  # fmt: skip
def test_a_worker_that_cannot_begin(
    words: tuple[str, ...], texts: tuple[str, ...], world: World
) -> None:
    for name, text in MODULES.items():
        (world.folder / f"{name}.py").write_text(text)
    fails_in_json("worker", *words, code=2, texts=texts, folder=world.folder, url=world.url)


def test_dev_without_an_application_names_itself(tmp_path: Path) -> None:
    texts = ("no application is given", "as in `tenure dev shop.jobs:app`")
    fails("dev", "--no-reload", code=2, texts=texts, folder=tmp_path)


def test_a_worker_without_a_database_says_what_ls_says(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from tenure import Tenure\napp = Tenure()\n")
    said = fails_in_words("ls", code=2, texts=("no database is given",), folder=tmp_path)
    assert fails_in_words("worker", "shop", code=2, texts=(), folder=tmp_path) == said


def test_a_worker_without_a_schema(pg_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from tenure import Tenure\napp = Tenure()\n")
    done = run("worker", "shop", folder=tmp_path, url=pg_url)
    assert done.code == 5
    assert done.err.startswith("tenure: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("project", "text"),
    [
        ("[tool.tenure\n", "pyproject.toml cannot be read"),
        ("[tool]\ntenure = 3\n", "must be a table"),
        ("[tool.tenure]\nurl = 3\n", "url under [tool.tenure]"),
        (
            "[tool.tenure]\nulr = 'sqlite:///a.db'\n",
            "unknown setting 'ulr' in [tool.tenure] of pyproject.toml; known settings: url",
        ),
        (
            "[tool.tenure.ls]\nlimt = 3\n",
            "unknown option 'limt' in [tool.tenure.ls] of pyproject.toml",
        ),
        ("[tool.tenure.ls]\nlimit = 'many'\n", "'many' is not a valid integer"),
    ],
)  # fmt: skip
def test_a_wrong_project_file(project: str, text: str, world: World) -> None:
    (world.folder / "pyproject.toml").write_text(project)
    fails_in_words("ls", code=2, texts=(text,), folder=world.folder, url=world.url)
    assert run("--help", folder=world.folder).code == 0


def test_a_bulk_change_says_what_was_refused(world: World) -> None:
    """Some of the jobs cannot be changed: the others are, and the exit code tells."""
    words = ("rm", str(world.queued), str(world.failed), "--yes")
    plain = run(*words, folder=world.folder, url=world.url)
    assert plain.code == 1
    assert f"{world.queued}: job {world.queued} is not finished; cancel it first" in plain.out
    assert "removed 1 job; 1 refused" in plain.out
    words = ("rm", str(world.queued), str(world.failed_too), "--yes")
    told: Done = run(*words, "--json", folder=world.folder, url=world.url)
    assert told.code == 1
    assert [line["changed"] for line in told.lines] == [True, False]
    assert "not finished" in told.lines[1]["error"]
