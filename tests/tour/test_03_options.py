"""Each task says how its jobs are treated; each call may say otherwise."""

from datetime import UTC, datetime, timedelta

from tenure import Running, State, Tenure
from tests.support.working import working


def test_options_of_the_task_and_of_the_call(app: Tenure) -> None:
    @app.task(queue="mail", priority=10, max_attempts=8, timeout_seconds=30)
    def send(to: str) -> None: ...

    usual = app.get(send.enqueue("ada@example.org").id)
    assert (usual.queue, usual.priority, usual.max_attempts) == ("mail", 10, 8)

    urgent = send.options(queue="fast", priority=-5, max_attempts=2).enqueue("ada@example.org")
    job = app.get(urgent.id)
    assert (job.queue, job.priority, job.max_attempts) == ("fast", -5, 2)
    assert job.timeout_seconds == 30  # what the call does not say, the task does


def test_a_delay_or_a_due_time(app: Tenure) -> None:
    @app.task()
    def remind(what: str) -> str:
        return what

    tomorrow = datetime.now(UTC) + timedelta(days=1)
    later = remind.options(due_at=tomorrow).enqueue("tea")
    soon = remind.options(delay_seconds=0.2).enqueue("coffee")
    assert app.get(later.id).state is State.SCHEDULED
    assert app.get(soon.id).state is State.SCHEDULED
    with working(app):
        assert soon.wait(timeout_seconds=30) == "coffee"
    assert app.get(later.id).due_at == tomorrow


def test_a_lower_priority_number_runs_first(app: Tenure) -> None:
    order = []

    @app.task()
    def note(name: str) -> None:
        order.append(name)

    handles = [
        note.options(priority=50).enqueue("can wait"),
        note.enqueue("usual"),
        note.options(priority=-50).enqueue("urgent"),
    ]
    with working(app, {"default": 1}, thread_slots=1):
        for handle in handles:
            handle.wait(timeout_seconds=30)
    assert order == ["urgent", "usual", "can wait"]


def test_metadata_travels_beside_the_arguments(app: Tenure) -> None:
    @app.task()
    def who(job: Running) -> object:
        return job.metadata["user"]

    with working(app):
        assert who.options(metadata={"user": "ada"}).enqueue().wait(timeout_seconds=30) == "ada"


def test_a_worker_serves_the_queues_that_it_names(app: Tenure) -> None:
    @app.task(queue="gpu")
    def train(epochs: int) -> int:
        return epochs

    @app.task()
    def tidy() -> str:
        return "tidy"

    big, small = train.enqueue(3), tidy.enqueue()
    with working(app, {"gpu": 1}):  # at most one job of this queue at a time
        assert big.wait(timeout_seconds=30) == 3
        assert app.get(small.id).state is State.QUEUED
    with working(app):  # the queue `default`
        assert small.wait(timeout_seconds=30) == "tidy"
