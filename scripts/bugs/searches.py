"""Bugs of searches: filters, walks, pages."""

from scripts.bugs.bug import POSTGRES, SQLITE, UNUSED, Bug, python, sql

_UNSEEN = UNUSED + "search by more than a state"
_FIND = "tests/contract/test_find.py::"

SEARCHES = (
    Bug(
        "search-all-tenants", "a search shows the live jobs of other tenants",
        f"{_FIND}test_a_tenant_finds_its_own_and_global_jobs_only",
        (
            sql(SQLITE, "find", "find_live", "(:tenant is null or t.tenant in (:tenant, ''))",
                "(:tenant is null or 1)"),
            sql(POSTGRES, "find", "find_live",
                "(:tenant::text is null or t.tenant in (:tenant::text, ''))",
                "(:tenant::text is null or true)"),
        ),
        unseen=_UNSEEN,
    ),
    Bug(
        "search-loses-edge", "a page leaves out the job at which it ends",
        f"{_FIND}test_the_search_finds_what_a_plain_predicate_finds",
        (python("store/look/find", "if hit.position >= edge]", "if hit.position > edge]"),),
        unseen=_UNSEEN,
    ),
    Bug(
        "search-merges-ahead", "the walk that is furthest ahead goes on",
        f"{_FIND}test_jobs_that_end_between_two_pages_are_neither_lost_nor_seen_twice",
        (python("store/look/find", "pick = max if self._plan.descends else min",
                "pick = min if self._plan.descends else max"),),
        unseen=_UNSEEN,
    ),
    Bug(
        "search-null-is-neither", "a negation finds no job without a value",
        f"{_FIND}test_a_negation_finds_all_others",
        (python("store/conditions", "coalesce(({sql}), false)\"", "({sql})\""),),
        unseen=_UNSEEN,
    ),
    Bug(
        "search-now-moves", "each page counts relative times from its own time",
        f"{_FIND}test_relative_times_stay_the_same_on_all_pages",
        (python("store/look/find", "    if cursor is not None:\n        return cursor.first_page_at",
                "    if cursor is not None and not wanted.terms:\n"
                "        return cursor.first_page_at"),),
        unseen=_UNSEEN,
    ),
    Bug(
        "search-without-end", "a page looks at all jobs",
        f"{_FIND}test_a_page_without_matches_tells_how_many_it_looked_at",
        (python("store/look/find", "over = self.looked_at >= SCAN_ROWS or", "over = "),),
        unseen=_UNSEEN,
    ),
    Bug(
        "search-wild-values", "a star is not the only wildcard",
        f"{_FIND}test_only_a_star_is_a_wildcard",
        (
            python("store/sqlite/find", 'if char in "[?*" else char', 'if char in "" else char'),
            python("store/postgres/find", 'if char in "\\\\%_" else char',
                   'if char in "" else char'),
        ),
        unseen=_UNSEEN,
    ),
)  # fmt: skip
