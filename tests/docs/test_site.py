"""`make docs` builds a site that is whole, and needs nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.make_site import for_the_site
from tests.docs.pages import ROOT

pytestmark = pytest.mark.slow

REMOTE = re.compile(
    r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^\s\"'>]*"
)


def build(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts/make_site.py", "--docs", docs, "--to", site],
        capture_output=True, text=True,
    )  # fmt: skip


def test_the_site_has_every_page_with_navigation_and_search(tmp_path: Path) -> None:
    docs, site = ROOT / "docs", tmp_path / "site"
    built = build(docs, site)
    assert built.returncode == 0, built.stdout + built.stderr
    for page in docs.rglob("*.md"):
        name = page.relative_to(docs).with_suffix(".html")
        made = site / (name.with_name("index.html") if name.stem == "README" else name)
        text = made.read_text("utf-8")
        assert "reference/settings.html" in text or made.parent.name == "reference", made
        assert not REMOTE.findall(text), made
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert not re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", styles)
    assert "lease_seconds" in (site / "search.json").read_text("utf-8")


def test_broken_links_fail_the_build(tmp_path: Path) -> None:
    told = failed_build(tmp_path, "tutorial.md", "[one](nowhere.md) [two](index.md#nowhere)")
    assert "2 issues" in told
    assert "anchor does not exist" in told


def test_a_page_in_no_menu_fails_the_build(tmp_path: Path) -> None:
    told = failed_build(tmp_path, "forgotten.md", "# Forgotten")
    assert "forgotten.md is not in the navigation" in told


def failed_build(folder: Path, page: str, text: str) -> str:
    """What is said when this text is added to this page, and no site is made."""
    docs, site = folder / "docs", folder / "site"
    shutil.copytree(ROOT / "docs", docs)
    with (docs / page).open("a", encoding="utf-8") as file:
        file.write(f"\n{text}\n")
    built = build(docs, site)
    assert built.returncode != 0
    assert not site.exists()
    return built.stdout + built.stderr


def test_a_diagram_becomes_a_table() -> None:
    page = "```mermaid\nstateDiagram-v2\n    [*] --> queued: enqueue\n```\nmore\n"
    shown = for_the_site(page)
    assert shown == "| from | to | by |\n|---|---|---|\n|  | queued | enqueue |\nmore\n"


def test_marks_are_left_out_and_steps_are_indented() -> None:
    page = "```python beside shop.py\n   x\n```\n\n1. so\n\n   ```sh run\n   ls\n   ```\n"
    shown = for_the_site(page)
    assert shown == "```python\n   x\n```\n\n1. so\n\n    ```sh\n    ls\n    ```\n"
