"""For the tests of users: run jobs here and now, with a clock that only moves when told.

    from tenure.testing import drain, enqueued, frozen

    def test_welcome_mail(tenure_url):                  # a fixture of the pytest plugin
        with frozen(app, url=tenure_url) as clock:
            sign_up("me@example.org")
            assert enqueued(app, send_mail)[0].args == {"to": "me@example.org"}
            clock.advance(3600)
            [job] = drain(app)
            assert job.state == "succeeded"

Nothing here needs a worker, a thread or a sleep. Jobs are claimed, run and settled by the code that
workers use.
"""

from tenure.testing.clock import Clock, frozen
from tenure.testing.run import drain, drain_async, enqueued, run_job, run_job_async

__all__ = ["Clock", "drain", "drain_async", "enqueued", "frozen", "run_job", "run_job_async"]
