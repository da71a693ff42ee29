"""For the tests of users: run jobs here and now, with a clock that only moves when told.

    from tenure.testing.look import assert_enqueued
    from tenure.testing.run import drain
    from tenure.testing.clock import frozen

    def test_welcome_mail(tenure_url):                  # a fixture of the pytest plugin
        with frozen(app, url=tenure_url) as clock:
            sign_up("me@example.org")
            assert_enqueued(app, send_mail.call("me@example.org"))
            clock.advance(3600)
            [job] = drain(app)
            assert job.state == "succeeded"

Nothing here needs a worker, a thread or a sleep. Jobs are claimed, run and settled by the code that
workers use. Names are loaded when they are first used: pytest imports this package with its plugin,
in every run.

run.py        run jobs here and now, one after the other
inline.py     run every job when it is enqueued, before `enqueue` returns
clock.py      a clock that stands still, and an application that uses it
look.py       enqueued jobs, to inspect and assert
plugin.py     the pytest plugin: fixtures
recorder.py   record every operation of a worker, for the history checker
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenure.testing.clock import Clock, frozen
    from tenure.testing.inline import inline
    from tenure.testing.look import EnqueuedJob, assert_enqueued, enqueued
    from tenure.testing.run import drain, drain_async, run_job, run_job_async

__all__ = [
    "Clock",
    "EnqueuedJob",
    "assert_enqueued",
    "drain",
    "drain_async",
    "enqueued",
    "frozen",
    "inline",
    "run_job",
    "run_job_async",
]

_HOMES = {
    "clock": ("Clock", "frozen"),
    "inline": ("inline",),
    "look": ("EnqueuedJob", "assert_enqueued", "enqueued"),
    "run": ("drain", "drain_async", "run_job", "run_job_async"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"tenure.testing has no {name!r}; it has {', '.join(__all__)}")
    value: object = getattr(import_module(f"tenure.testing.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
