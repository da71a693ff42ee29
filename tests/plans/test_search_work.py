"""The first page of a search looks at a bounded number of jobs, and its work does not grow with the
tables: no search by one field has a plan that reads more than the walk has chosen.

Pages are counted on PostgreSQL, steps of the virtual machine on SQLite, in a small and in a large
database. A page may look at a few hundred jobs, so that both have more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from bench.lookups import SEARCHES, fill
from bench.workloads.place import Kind, Place
from tenure.store import Page, Store, open_store
from tenure.store.look import find
from tests.plans.test_sqlite_work import Meter
from tests.support.pages import PageCounter
from tests.support.postgres import Server

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("search-work")]

SMALL, LARGE = 5000, 50_000
ROWS = 300
WORST_RATIO = 2.0
ROOM = {"sqlite": 12_000, "postgres": 600}
"""What a search may cost whatever it finds: a first step of 200 jobs, deeper trees."""
BY_TIME = {"by_finish", "finished", "finished_before"}
"""On PostgreSQL a block of BRIN covers 128 pages, more than a day has in the small database."""

Works = dict[str, tuple[int, Page]]
Count = Callable[[Callable[[], object]], int]


@pytest.fixture(scope="module")
def works(
    pg_server: Server, pg_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Kind, list[Works]]]:
    """The work and the first page of each search, in a small and in a large database."""
    folder = tmp_path_factory.mktemp("searches")
    urls = [pg_server.create_database(template=pg_template) for _ in range(2)]
    sizes = (SMALL, LARGE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(find, "SCAN_ROWS", ROWS)
        patch.setattr(find, "SCAN_SECONDS", 1e9)
        yield {
            "sqlite": [on_sqlite(folder / f"{size}.db", size) for size in sizes],
            "postgres": [on_postgres(url, size) for url, size in zip(urls, sizes, strict=True)],
        }
    for url in urls:
        pg_server.drop_database(url)


def on_sqlite(path: Path, size: int) -> Works:
    url = f"sqlite:///{path}"
    with open_store(url) as store:
        fill(place(url, "sqlite", store), size)
    with Meter() as meter, open_store(url) as store:
        return measured(store, meter.count)


def on_postgres(url: str, size: int) -> Works:
    with open_store(url, connections=1) as store, psycopg.connect(url, autocommit=True) as reader:
        fill(place(url, "postgres", store), size)
        store.list_jobs()
        return measured(store, PageCounter(store, reader).total)


def place(url: str, kind: Kind, store: Store) -> Place:
    return Place(kind, url, store, count=None, look=lambda _: None)  # type: ignore[arg-type]


def measured(store: Store, count: Count) -> Works:
    found: Works = {}
    for name, text in SEARCHES.items():
        pages: list[Page] = []
        work = count(lambda: pages.append(store.list_jobs(text, limit=10)))  # noqa: B023
        found[name] = (work, pages[0])
    return found


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("name", SEARCHES)
def test_the_first_page_of_a_search_is_bounded_work(
    works: dict[Kind, list[Works]], name: str, kind: Kind
) -> None:
    (little, _), (much, page) = (each[name] for each in works[kind])
    print(f"{kind} {name}: {little} and {much}, looked at {page.looked_at}")
    assert page.looked_at <= ROWS + 2
    assert page.jobs or page.next is not None or "rare" in name
    room = 20 * ROOM[kind] if name in BY_TIME and kind == "postgres" else ROOM[kind]
    assert much <= WORST_RATIO * little + room
