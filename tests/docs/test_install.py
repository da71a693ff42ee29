"""The page about the installation agrees with pyproject.toml."""

from __future__ import annotations

import re
import tomllib

from tests.docs.pages import ROOT, page

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PAGE = page("docs/install.md")


def names(requirements: list[str]) -> set[str]:
    return {each[0] for text in requirements if (each := re.findall(r"[\w-]+", text))}


def test_the_page_lists_every_extra_and_its_packages() -> None:
    rows = {row[0].strip("`"): row[2] for row in PAGE.section("Extras").rows}
    extras = PROJECT["optional-dependencies"]
    assert set(rows) == {"tenure", *(f"tenure[{extra}]" for extra in extras)}
    needed = [each for each in PROJECT["dependencies"] if "Windows" not in each]
    expected = {"tenure": needed} | {
        f"tenure[{extra}]": extras[extra] for extra in extras if extra != "dev"
    }
    for row, requirements in expected.items():
        assert set(re.findall(r"`([\w-]+)`", rows[row])) == names(requirements), row


def test_the_page_names_the_version_of_the_package_and_of_python() -> None:
    text = PAGE.path.read_text("utf-8")
    assert set(re.findall(r"tenure-([\d.]+)-py3", text)) == {PROJECT["version"]}
    named = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert f"Python {', '.join(named)} or newer" in text
    assert PROJECT["requires-python"] == f">={named[0]}"
