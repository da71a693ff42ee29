"""A job can wait for others."""

from tenure import State, Tenure
from tenure.testing import drain
from tests.support.working import working


def test_a_child_starts_after_its_parents(app: Tenure) -> None:
    done = []

    @app.task()
    def bake(part: str) -> None:
        done.append(part)

    @app.task()
    def serve() -> list[str]:
        return sorted(done)

    crust, filling = bake.enqueue("crust"), bake.enqueue("filling")
    pie = serve.options(parents=[crust, filling]).enqueue()
    assert app.get(pie.id).state is State.WAITING
    with working(app):
        assert pie.wait(timeout_seconds=30) == ["crust", "filling"]


def test_a_parent_that_fails_takes_its_children_along(app: Tenure) -> None:
    @app.task(max_attempts=1)
    def bake() -> None:
        raise RuntimeError("burnt")

    @app.task()
    def serve() -> None: ...

    pie = serve.options(parents=[bake.enqueue()]).enqueue()
    drain(app, raise_errors=False)  # a test may run its jobs itself
    assert app.get(pie.id).state is State.SKIPPED
