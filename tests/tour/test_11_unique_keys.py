"""With a key there is at most one such job: a second enqueue finds the first."""

from tenure import State, Tenure, Unique, Until
from tests.support.working import working


def test_the_second_enqueue_gets_the_first_job(app: Tenure) -> None:
    @app.task()
    def welcome(user: int) -> str:
        return f"welcome {user}"

    first = welcome.options(key="welcome:42").enqueue(42)
    second = welcome.options(key="welcome:42").enqueue(42)
    assert (first.created, second.created) == (True, False)
    assert second.id == first.id

    other = welcome.options(key="welcome:42").enqueue(43)
    assert not other.same_args  # another call used this key with other arguments

    with working(app):
        assert second.wait(timeout_seconds=30) == "welcome 42"
    third = welcome.options(key="welcome:42").enqueue(42)  # the key was given back at the end
    assert third.created


def test_a_key_can_be_held_longer_or_shorter(app: Tenure) -> None:
    @app.task()
    def sync(account: str) -> None: ...

    once = sync.options(unique=Unique(key="import-2026", until=Until.FOREVER))
    daily = sync.options(unique=Unique(key="a", until=Until.PERIOD, period_seconds=86_400))
    with working(app):
        once.enqueue("a").wait(timeout_seconds=30)
        daily.enqueue("a").wait(timeout_seconds=30)
    assert not once.enqueue("a").created
    assert not daily.enqueue("a").created

    brief = sync.options(unique=Unique(key="b", until=Until.STARTED))
    first, second = brief.enqueue("b"), brief.enqueue("b")
    assert second.id == first.id
    assert app.get(first.id).state is State.QUEUED
