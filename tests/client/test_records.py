"""Records as Python values, as JSON, and as the results of web views."""

import inspect
import json
import typing
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import django.conf
import msgspec
import pytest
from fastapi import FastAPI

import tenure
from scripts.make_reference import HIDDEN
from tenure import Handle, Job, Page, Record, Schedules, Tenure, WorkflowRun
from tenure.errors import JobFailed, PayloadInvalid
from tenure.rules.job import ErrorInfo
from tenure.running import Running
from tenure.store import Store
from tests.support.patience import PATIENCE_SECONDS
from tests.support.working import working

with warnings.catch_warnings():  # it prefers another library to httpx
    warnings.filterwarnings("ignore", "Using `httpx` with")
    from fastapi.testclient import TestClient

LARGE = 2**70
ARGS = {"to": "Zoë", "n": LARGE, "data": "AAE=", "tags": ["a", "b"]}
ENGINE = frozenset({
    "announce", "claim", "declare_gates", "declare_schedules", "enqueue", "expire", "extend",
    "fire", "heal_gates", "heal_workflows", "health_facts", "held", "is_idle", "peek", "promote",
    "record_step", "report_progress", "retire", "save_checkpoint", "annotate", "start_once",
    "settle", "sweep",
})  # fmt: skip
"""What only workers, the command line and `Handle` ask of a store."""


@pytest.fixture
def done(app: Tenure) -> Job:
    """A job that has succeeded."""

    @app.task()
    def send(to: str, n: int, data: bytes, tags: list[str]) -> dict[str, object]:
        return {"to": to, "n": n, "size": len(data), "tags": tags}

    with working(app):
        handle = send.options(metadata={"by": "me"}).enqueue("Zoë", LARGE, b"\0\1", ["a", "b"])
        handle.wait(timeout_seconds=PATIENCE_SECONDS)
    return handle.job()


def failed(app: Tenure) -> Job:
    @app.task(max_attempts=1)
    def fails() -> None:
        raise ValueError("no such user")

    with working(app):
        handle = fails.enqueue()
        with pytest.raises(JobFailed) as raised:
            handle.wait(timeout_seconds=PATIENCE_SECONDS)
    assert raised.value.error == handle.job().error
    return handle.job()


def test_a_job_has_python_values_and_the_stored_text(done: Job) -> None:
    assert done.args == ARGS
    assert json.loads(done.args_json) == ARGS
    assert done.result == {"to": "Zoë", "n": LARGE, "size": 2, "tags": ["a", "b"]}
    assert json.loads(done.result_json or "") == done.result
    assert (done.metadata, done.metadata_json) == ({"by": "me"}, '{"by":"me"}')
    assert (done.error, done.error_json) == (None, None)
    assert (done.retry, done.retry_json) == (None, None)


def test_an_error_has_its_type_message_and_traceback(app: Tenure) -> None:
    error = failed(app).error
    assert error is not None
    assert (error.type, error.message, error.output) == ("ValueError", "no such user", None)
    assert 'raise ValueError("no such user")' in error.traceback
    assert str(error) == "ValueError: no such user"


def test_values_are_decoded_when_they_are_used_and_only_once(
    done: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []
    decode = msgspec.json.decode

    def counting(text: str) -> Any:
        decoded.append(text)
        return decode(text)

    monkeypatch.setattr(msgspec.json, "decode", counting)
    assert (done.id, done.state, repr(done)) is not None
    assert decoded == []
    assert done.args is done.args
    assert decoded == [done.args_json]


def test_stored_json_that_cannot_be_read_names_the_field_with_its_text(done: Job) -> None:
    digits = "9" * 5000
    strange = msgspec.structs.replace(done, result_json=digits, error_json="no JSON")
    with pytest.raises(PayloadInvalid, match="result_json has its text"):
        _ = strange.result
    assert strange.as_dict()["result"] == digits
    assert strange.error == ErrorInfo("unknown", "no JSON")


@pytest.fixture
def web(app: Tenure) -> Iterator[TestClient]:
    """A FastAPI service that shows jobs, with and without annotations."""
    api = FastAPI()

    @api.get("/typed/{id}")
    def typed(id: int) -> Job:
        return app.get(id)

    @api.get("/typed_async/{id}")
    async def typed_async(id: int) -> Job:
        return await app.get_async(id)

    @api.get("/plain/{id}")
    def plain(id: int):  # type: ignore[no-untyped-def]
        return app.get(id)

    @api.get("/inside/{id}")
    def inside(id: int):  # type: ignore[no-untyped-def]
        return {"job": app.get(id), "progress": app.progress(id)}

    @api.get("/jobs")
    def jobs() -> Page:
        return app.list_jobs()

    @api.get("/timeline/{id}")
    def timeline(id: int) -> list[tenure.Event]:
        return app.timeline(id)

    with TestClient(api) as client:
        yield client


@pytest.mark.parametrize("path", ["typed", "typed_async", "plain"])
def test_a_fastapi_view_returns_a_job(web: TestClient, done: Job, path: str) -> None:
    reply = web.get(f"/{path}/{done.id}")
    assert reply.status_code == 200, reply.text
    seen = reply.json()
    wanted = done.as_dict()
    assert datetime.fromisoformat(seen.pop("created_at")) == done.created_at
    assert seen.keys() | {"created_at"} == wanted.keys()
    assert {name: seen[name] for name in ("args", "result", "metadata", "state", "id")} == {
        name: wanted[name] for name in ("args", "result", "metadata", "state", "id")
    }
    assert "args_json" not in seen


def test_a_fastapi_view_returns_an_error(app: Tenure, web: TestClient) -> None:
    job = failed(app)
    for path in ("typed", "plain"):
        assert web.get(f"/{path}/{job.id}").json()["error"]["message"] == "no such user"


def test_a_fastapi_view_returns_records_inside_other_values(web: TestClient, done: Job) -> None:
    seen = web.get(f"/inside/{done.id}").json()
    assert (seen["job"]["args"], seen["progress"]["checkpoint"]) == (ARGS, None)
    [job] = web.get("/jobs").json()["jobs"]
    assert (job["id"], job["task"]) == (done.id, done.task)
    kinds = [event["kind"] for event in web.get(f"/timeline/{done.id}").json()]
    assert kinds == ["enqueued", "claimed", "succeeded"]


def test_fastapi_describes_a_job(web: TestClient) -> None:
    described = web.get("/openapi.json").json()
    ok = described["paths"]["/typed/{id}"]["get"]["responses"]["200"]
    schema = ok["content"]["application/json"]["schema"]
    fields = schema["properties"]
    assert (fields["id"]["type"], fields["created_at"]["format"]) == ("integer", "date-time")
    assert {"args", "result", "error", "metadata"} <= fields.keys()
    assert "args_json" not in fields


def test_a_django_view_returns_a_job(app: Tenure, done: Job) -> None:
    from django.http import JsonResponse

    if not django.conf.settings.configured:
        django.conf.settings.configure()
    seen = json.loads(JsonResponse(done.as_dict()).content)
    assert (seen["args"], seen["state"], seen["error"]) == (ARGS, "succeeded", None)
    assert datetime.fromisoformat(seen["created_at"]) == done.created_at
    page = json.loads(JsonResponse(app.list_jobs().as_dict()).content)
    assert [job["id"] for job in page["jobs"]] == [done.id]


def test_a_dict_of_a_record_has_python_values(done: Job) -> None:
    values = dict(done)
    assert values["created_at"] == done.created_at
    assert values["args"] == done.args
    assert done["state"] is done.state
    with pytest.raises(KeyError):
        _ = done["args_json"]


# --- all records ----------------------------------------------------------------------------------


def returned_by(kind: type[Any], skipped: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """The public members of a class, and the types that they return."""
    from tenure.rules.graph import ParentEnd
    from tenure.tasks import Task
    from tenure.workflow import Growth

    lazy = {"ParentEnd": ParentEnd, "Task": Task, "Growth": Growth}
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)
        if name.startswith("_") or name in skipped or isinstance(member, type):
            continue
        member = member.fget if isinstance(member, property) else getattr(kind, name)
        if callable(member):
            hints = typing.get_type_hints(inspect.unwrap(member), localns=lazy)
            assert "return" in hints, name
            yield name, hints["return"]


def structs_in(kind: Any, found: set[type[msgspec.Struct]]) -> None:
    for part in typing.get_args(kind):
        structs_in(part, found)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
        found.add(kind)
        for hint in typing.get_type_hints(kind).values():
            structs_in(hint, found)


def all_records() -> set[type[msgspec.Struct]]:
    found: set[type[msgspec.Struct]] = set()
    kinds: tuple[type[Any], ...] = (Tenure, Handle, WorkflowRun, Schedules, Running, Store)
    for kind in kinds:
        skipped = ENGINE if kind is Store else frozenset(HIDDEN.get(kind.__name__, ()))
        for _, returned in returned_by(kind, skipped):
            structs_in(returned, found)
    return found | {ErrorInfo}


def test_every_record_that_the_api_returns_is_exported_and_a_record() -> None:
    found = all_records()
    assert {Job, tenure.Changes, tenure.NodePage, tenure.GateWait, tenure.ParentEnd} <= found
    missing = {kind.__name__ for kind in found} - set(tenure.__all__)
    assert not missing
    assert [kind.__name__ for kind in found if not issubclass(kind, Record)] == []


@pytest.mark.parametrize("kind", sorted(all_records(), key=str))
def test_every_record_can_be_the_type_of_a_view(kind: type[Any]) -> None:
    from pydantic import TypeAdapter

    fields = TypeAdapter(kind).json_schema(mode="serialization")["properties"]
    assert set(fields) == {name.removesuffix("_json") for name in kind.__struct_fields__}


def test_numbers_as_keys_and_times_become_json() -> None:
    changes = tenure.Changes((1,), {2: "already held"}, {})
    assert changes.as_dict()["unchanged"] == {"2": "already held"}
    queue = tenure.PausedQueue("mail", datetime(2026, 3, 1, tzinfo=UTC), None)
    assert queue.as_dict()["paused_at"] == "2026-03-01T00:00:00Z"
    json.dumps(tenure.GateSeen("g", tenure.Limits(rate=2), None, False, 0, 0, 0).as_dict())
