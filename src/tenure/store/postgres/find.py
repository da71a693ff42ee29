r"""The terms of a filter on PostgreSQL: see `tenure.store.conditions`.

A document with escapes that no text can hold (`\u0000`, or half of a pair) makes PostgreSQL raise
an error when its values are read. Other programs may have written one, so such a document counts as
null here.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from tenure.store.conditions import Conditions

_UNREADABLE = r"'\\u(0000|[dD][89a-fA-F])'"
_NUMERIC = r"'^-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?$'"


class PostgresConditions(Conditions):
    """Every parameter has its type."""

    def _bind(self, value: object) -> str:
        return f"%({self._name(value)})s::text"

    def _integer(self, value: object) -> str:
        return f"%({self._name(value)})s::bigint"

    def _number(self, value: object) -> str:
        return f"%({self._name(repr(value))})s::numeric"

    def _time(self, at: datetime) -> str:
        return f"%({self._name(at.astimezone(UTC))})s::timestamptz"

    def _like(self, operand: str, parts: Sequence[str]) -> str:
        return f"{operand} like {self._bind('%'.join(map(_literal, parts)))}"

    def _has(self, operand: str, part: str) -> str:
        return f'strpos(lower(({operand}) collate "C"), lower({part} collate "C")) > 0'

    def _sortable(self, operand: str) -> str:
        return f'{operand} collate "C"'

    def _value(self, column: str, path: Sequence[str]) -> str:
        text = f"{column}::text"
        readable = rf"strpos({text}, '\u') = 0 or {text} !~ {_UNREADABLE}"
        return f"(case when {readable} then {column} #> %({self._name(list(path))})s::text[] end)"

    def _text_of(self, value: str) -> str:
        return f"(case when json_typeof({value}) = 'string' then {value} #>> '{{}}' end)"

    def _number_of(self, value: str) -> str:
        text = f"{value} #>> '{{}}'"
        is_number = f"json_typeof({value}) = 'number' and ({text}) ~ {_NUMERIC}"
        return f"(case when {is_number} then ({text})::numeric end)"

    def _is_flag(self, value: str, flag: bool) -> str:
        literal = "true" if flag else "false"
        return f"json_typeof({value}) = 'boolean' and {value} #>> '{{}}' = '{literal}'"

    def _is_null(self, value: str) -> str:
        return f"json_typeof({value}) = 'null'"


def _literal(text: str) -> str:
    """Text in a pattern of `like` that stands for itself."""
    return "".join(f"\\{char}" if char in "\\%_" else char for char in text)
