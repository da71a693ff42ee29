"""The terms of a filter on SQLite: see `tenure.store.conditions`."""

from collections.abc import Sequence
from datetime import datetime

from tenure.store.conditions import Conditions
from tenure.store.sqlite.boot_clock import EPOCH, MICROSECOND


class SQLiteConditions(Conditions):
    """Times are microseconds. JSON is text, which need not be valid."""

    def _bind(self, value: object) -> str:
        return f":{self._name(value)}"

    _integer = _number = _bind

    def _time(self, at: datetime) -> str:
        return self._bind((at - EPOCH) // MICROSECOND)

    def _like(self, operand: str, parts: Sequence[str]) -> str:
        return f"{operand} glob {self._bind('*'.join(map(_literal, parts)))}"

    def _has(self, operand: str, part: str) -> str:
        return f"instr(lower({operand}), lower({part})) > 0"

    def _sortable(self, operand: str) -> str:
        return operand

    def _value(self, column: str, path: Sequence[str]) -> str:
        value = f"(case when json_valid({column}) then {column} end)"
        for segment in path:
            named = self._bind(f'$."{segment}"')
            inner = f"{value} -> {named}"
            if segment.isascii() and segment.isdigit():
                inner = f"coalesce({inner}, {value} -> {self._bind(f'$[{int(segment)}]')})"
            value = f"({inner})"
        return value

    def _text_of(self, value: str) -> str:
        return f"(case when json_type({value}) = 'text' then {value} ->> '$' end)"

    def _number_of(self, value: str) -> str:
        return f"(case when json_type({value}) in ('integer', 'real') then {value} ->> '$' end)"

    def _is_flag(self, value: str, flag: bool) -> str:
        return f"json_type({value}) = '{'true' if flag else 'false'}'"

    def _is_null(self, value: str) -> str:
        return f"json_type({value}) = 'null'"


def _literal(text: str) -> str:
    """Text in a pattern of `glob` that stands for itself."""
    return "".join(f"[{char}]" if char in "[?*" else char for char in text)
