"""Tasks in a module that knows no application and no database."""

from tenure import TaskSet

tasks = TaskSet()


@tasks.task(queue="mail", max_attempts=8)
def send(to: str, subject: str) -> str:
    """A library can offer tasks; an application includes them."""
    return f"{subject} -> {to}"
