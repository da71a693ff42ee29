"""The language that chooses jobs, for Python, the command line and every other surface.

words.py        the description of the language: `tenure ls --help` and the reference show it
fields.py       the fields, their kinds, and what each kind can be compared with
terms.py        a filter as a tree: what a parser makes and a store reads
times.py        moments: `2h`, `today`, `2026-01-31T08:00`
parse.py        text to a filter
given.py        keyword arguments to a filter
"""

from tenure.rules.filters.fields import FIELDS, Kind
from tenure.rules.filters.given import Fields, filter_of
from tenure.rules.filters.parse import parse
from tenure.rules.filters.terms import Exact, Filter, Has, Order, Span, Term, Text
from tenure.rules.filters.words import describe

__all__ = [
    "FIELDS",
    "Exact",
    "Fields",
    "Filter",
    "Has",
    "Kind",
    "Order",
    "Span",
    "Term",
    "Text",
    "describe",
    "filter_of",
    "parse",
]
