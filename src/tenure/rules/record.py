"""The base of the records that clients read. A web view can return them.

A field `x_json` holds stored JSON as text. The property `x` is its value, decoded at the first use:
a page of a thousand jobs decodes nothing that its reader does not look at.

    job.args, job.args_json         the value, and the stored text
    job.as_dict()                   plain JSON values, for `json.dumps` or Django's JsonResponse
    dict(job)                       the same keys with Python values; FastAPI uses it
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import msgspec

from tenure.errors import PayloadInvalid

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

_STORED = "_json"

R = TypeVar("R", bound=msgspec.Struct)


class Record:
    """A record that clients read."""

    __slots__ = ()
    __struct_fields__: tuple[str, ...]

    def keys(self) -> tuple[str, ...]:
        """The names of its values, so that `dict(record)` works."""
        return tuple(name.removesuffix(_STORED) for name in self.__struct_fields__)

    def __getitem__(self, name: str) -> Any:
        if name not in self.keys():
            raise KeyError(name)
        try:
            return getattr(self, name)
        except (
            PayloadInvalid
        ):  # an integer that Python does not read: its text is better than nothing
            return getattr(self, name + _STORED)

    def as_dict(self) -> dict[str, Any]:
        """All values as plain JSON values: a datetime becomes ISO 8601 text with its zone.

        Stored JSON with an integer of more than 4,300 digits, which Python does not read, stays
        text.
        """
        stored = {name for name in self.__struct_fields__ if name.endswith(_STORED)}
        values = {name: self[name] for name in self.keys()}
        return {
            name: value
            if name + _STORED in stored and not isinstance(value, Record)
            else plain(value)
            for name, value in values.items()
        }

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: "GetCoreSchemaHandler"
    ) -> "CoreSchema":
        """For FastAPI and pydantic: the type of a view's result, as an object with these keys."""
        from pydantic_core import core_schema

        fields = {
            name: core_schema.typed_dict_field(handler.generate_schema(kind), required=required)
            for name, kind, required in _values(cls)
        }
        return core_schema.is_instance_schema(
            cls,
            serialization=core_schema.plain_serializer_function_ser_schema(
                dict, return_schema=core_schema.typed_dict_schema(fields, cls_name=cls.__name__)
            ),
        )


def plain(value: object) -> Any:
    """A value of a record as plain JSON values."""
    if isinstance(value, Record):
        return value.as_dict()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return msgspec.to_builtins(value, str_keys=True)


def value_of(record: Record, name: str) -> Any:
    """The value of the stored JSON in the field `name`; None if there is none."""
    text = getattr(record, name)
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise PayloadInvalid(
            f"the stored JSON cannot be read ({error}); {name} has its text"
        ) from error


def _values(kind: type[Record]) -> list[tuple[str, Any, bool]]:
    """The names, the types, and whether each is always there."""
    found = []
    hints = get_type_hints(kind)
    for name in kind.__struct_fields__:
        if name.endswith(_STORED):
            value = name.removesuffix(_STORED)
            decoded = getattr(kind, value)
            assert isinstance(decoded, cached_property)
            found.append((value, get_type_hints(decoded.func)["return"], False))
        else:
            found.append((name, hints[name], True))
    return found
