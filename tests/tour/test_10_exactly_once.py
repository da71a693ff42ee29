"""Effects that are written in the transaction that completes the job happen exactly once.

Every other effect happens at least once: a worker may die after it and before the job is done.
"""

import pytest

from tenure import Fixed, Running, State, Tenure
from tenure.errors import LeaseLost
from tests.support.working import working
from tests.tour.conftest import Connect


def entries(connect: Connect) -> list[str]:
    with connect() as connection:
        return [entry for (entry,) in connection.execute("select entry from ledger")]


def test_the_job_and_the_rows_are_committed_together(shared_app: Tenure, connect: Connect) -> None:
    @shared_app.task()
    def pay(job: Running, amount: int) -> int:
        with connect() as connection:
            connection.execute(f"insert into ledger values ('paid {amount}')")
            job.complete(amount, on=connection)
            connection.commit()
        return amount

    with working(shared_app):
        assert pay.enqueue(100).wait(timeout_seconds=30) == 100
    assert entries(connect) == ["paid 100"]


def test_without_the_commit_there_is_neither(shared_app: Tenure, connect: Connect) -> None:
    @shared_app.task(retry=Fixed(0))
    def pay(job: Running) -> None:
        with connect() as connection:
            connection.execute(f"insert into ledger values ('attempt {job.attempt}')")
            job.complete(on=connection)
            if job.attempt == 1:
                raise ConnectionError  # the connection is closed, and rolled back
            connection.commit()

    @shared_app.task(max_attempts=1)
    def forgetful(job: Running) -> None:
        with connect() as connection:
            job.complete(on=connection)  # and no commit

    with working(shared_app):
        pay.enqueue().wait(timeout_seconds=30)
        assert entries(connect) == ["attempt 2"]
        job = shared_app.wait(forgetful.enqueue().id, timeout_seconds=30)
    assert (job.state, job.reason) == (State.FAILED, "not committed")


def test_a_job_that_is_enqueued_in_a_transaction_is_real_when_that_commits(
    shared_app: Tenure, connect: Connect
) -> None:
    @shared_app.task()
    def welcome(user: str) -> str:
        return f"welcome {user}"

    with connect() as connection:
        connection.execute("insert into ledger values ('bob signed up')")
        welcome.options(on=connection).enqueue("bob")
        connection.rollback()
    assert shared_app.list_jobs().jobs == ()

    with connect() as connection:
        connection.execute("insert into ledger values ('ada signed up')")
        handle = welcome.options(on=connection).enqueue("ada")
        connection.commit()
    with working(shared_app):
        assert handle.wait(timeout_seconds=30) == "welcome ada"
    assert entries(connect) == ["ada signed up"]


def test_the_token_fences_writes_elsewhere(app: Tenure) -> None:
    bucket: dict[str, tuple[int, str]] = {}

    def put(name: str, token: int, data: str) -> None:
        """An object store that keeps what has the highest token, as a conditional write does."""
        if bucket.get(name, (0, ""))[0] > token:
            raise LeaseLost(f"{name} was written by a later attempt")
        bucket[name] = (token, data)

    tokens = []

    @app.task(retry=Fixed(0))
    def render(job: Running) -> None:
        tokens.append(job.token)  # grows with each attempt
        put("report.pdf", job.token, f"attempt {job.attempt}")
        if job.attempt == 1:
            raise ConnectionError

    with working(app):
        render.enqueue().wait(timeout_seconds=30)
    assert tokens == [1, 2]
    with pytest.raises(LeaseLost):
        put("report.pdf", tokens[0], "the first attempt, which woke up late")
    assert bucket == {"report.pdf": (2, "attempt 2")}
