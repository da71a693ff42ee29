"""The fields of a job that a filter can name."""

from enum import Enum, auto

import msgspec


class Kind(Enum):
    """What the values of a field are, and so how they can be compared."""

    STATE = auto()
    NUMBER = auto()
    NAME = auto()
    """Text that must be a valid name, apart from wildcards."""
    TEXT = auto()
    WORKFLOW = auto()
    """The id of a workflow, or its name."""
    TIME = auto()
    JSON = auto()
    """A document: the filter names a path in it."""


OPERATORS: dict[Kind, frozenset[str]] = {
    Kind.STATE: frozenset({"=", "!="}),
    Kind.NUMBER: frozenset({"=", "!=", "<", "<=", ">", ">="}),
    Kind.NAME: frozenset({"=", "!=", "~", "!~"}),
    Kind.TEXT: frozenset({"=", "!=", "~", "!~"}),
    Kind.WORKFLOW: frozenset({"=", "!=", "~", "!~"}),
    Kind.TIME: frozenset({"=", "!=", "<", "<=", ">", ">="}),
    Kind.JSON: frozenset({"=", "!=", "<", "<=", ">", ">=", "~", "!~"}),
}


class Field(msgspec.Struct, frozen=True):
    """A field: its name, its kind, and its meaning in a few words."""

    name: str
    kind: Kind
    meaning: str


FIELDS: dict[str, Field] = {
    field.name: field
    for field in (
        Field("id", Kind.NUMBER, "the id of the job; a number alone means the same"),
        Field("state", Kind.STATE, "waiting, scheduled, queued, running, succeeded, failed, "
              "cancelled, skipped"),
        Field("queue", Kind.NAME, "its queue"),
        Field("task", Kind.NAME, "the name of its task"),
        Field("tenant", Kind.TEXT, 'its tenant; "" for global jobs'),
        Field("key", Kind.TEXT, "its unique key"),
        Field("worker", Kind.TEXT, "the worker that runs it, or ran it last"),
        Field("priority", Kind.NUMBER, "-100 (first) to 100 (last)"),
        Field("attempts", Kind.NUMBER, "how many attempts were charged"),
        Field("error", Kind.TEXT, "the class of its last error, with or without its module"),
        Field("text", Kind.TEXT, "the message of its last error"),
        Field("reason", Kind.TEXT, "the reason of its last change, such as lease expired"),
        Field("workflow", Kind.WORKFLOW, "its workflow, by id or by name"),
        Field("schedule", Kind.TEXT, "the schedule that enqueued it"),
        Field("gate", Kind.NAME, "its gate"),
        Field("created", Kind.TIME, "when it was enqueued"),
        Field("due", Kind.TIME, "when a scheduled job is due"),
        Field("start_by", Kind.TIME, "until when it must have started, or else it is skipped"),
        Field("finish_by", Kind.TIME, "its deadline"),
        Field("started", Kind.TIME, "when its last attempt was claimed"),
        Field("finished", Kind.TIME, "when it finished"),
        Field("args", Kind.JSON, "a value of its arguments, such as args.user"),
        Field("metadata", Kind.JSON, "a value of its metadata, such as metadata.tenant_id"),
        Field("notes", Kind.JSON, "a note that it has added, such as notes.loss"),
    )
}  # fmt: skip
