"""Tasks can be declared first, and bound to an application later."""

import pytest

from tenure import Tenure
from tenure.errors import InvalidInput
from tests.support.working import working
from tests.tour import mailroom


def test_an_application_includes_tasks_from_elsewhere(app: Tenure) -> None:
    app.include(mailroom.tasks)
    assert mailroom.send.name == "tests.tour.mailroom.send"
    [handle] = app.enqueue_many([mailroom.send.call("ada@example.org", subject="hi")])
    with working(app, {"mail": 1}):
        assert handle.wait(timeout_seconds=30) == "hi -> ada@example.org"


def test_a_name_belongs_to_one_task(app: Tenure) -> None:
    @app.task(name="send")
    def send_mail() -> None: ...

    with pytest.raises(InvalidInput, match="two tasks are named send"):

        @app.task(name="send")
        def send_letter() -> None: ...
