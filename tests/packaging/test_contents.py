"""What is in the wheel and in the sdist."""

from __future__ import annotations

import tarfile
from email.parser import HeaderParser

import pytest

from tests.packaging.conftest import PROJECT, Built, files_of
from tests.support.clean import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.xdist_group("packaging")]

SOURCE = ROOT / "src"
BASE = {"apsw>=3.51.3.0", "click", "msgspec", "cronsim", 'tzdata; platform_system == "Windows"'}


def in_tree() -> set[str]:
    """Every file of the package, as it lies there."""
    found = (path for path in (SOURCE / "tenure").rglob("*") if path.is_file())
    return {str(path.relative_to(SOURCE)) for path in found if path.suffix != ".pyc"}


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    package = {name for name in built.files if ".dist-info/" not in name}
    assert package == in_tree()
    assert "tenure/py.typed" in package
    assert {name for name in package if name.endswith(".sql")} == {
        str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.sql")
    }
    assert sum(name.endswith(".sql") for name in package) > 10
    assert all(built.files[name] == (SOURCE / name).read_bytes() for name in package)


def test_the_wheel_is_for_every_machine(built: Built) -> None:
    """Nothing in it was compiled."""
    assert built.wheel.name == f"tenure-{PROJECT['project']['version']}-py3-none-any.whl"


def test_the_metadata_is_complete(built: Built) -> None:
    assert set(built.info) == {
        "METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"
    }  # fmt: skip
    about = HeaderParser().parsestr(built.info["METADATA"])
    assert about["Name"] == "tenure"
    assert about["Version"] == PROJECT["project"]["version"]
    assert about["Summary"]
    assert about["Requires-Python"] == ">=3.11"
    assert about["License-Expression"] == "Apache-2.0"
    assert about["License-File"] == "LICENSE"
    assert about["Description-Content-Type"] == "text/markdown"
    assert about.get_payload() == (ROOT / "README.md").read_text("utf-8")
    assert built.info["licenses/LICENSE"] == (ROOT / "LICENSE").read_text("utf-8")


def test_the_base_install_asks_for_little(built: Built) -> None:
    about = HeaderParser().parsestr(built.info["METADATA"])
    wanted = [each.replace("'", '"') for each in about.get_all("Requires-Dist", [])]
    assert {each for each in wanted if "extra ==" not in each} == BASE
    assert 'psycopg[binary]>=3.2; extra == "postgres"' in wanted


def test_the_commands_and_the_pytest_plugin_are_announced(built: Built) -> None:
    lines = built.info["entry_points.txt"].splitlines()
    assert [line for line in lines if line] == [
        "[console_scripts]", "tenure = tenure.cli.main:main",
        "[pytest11]", "tenure = tenure.testing.plugin",
    ]  # fmt: skip


def test_the_sdist_builds_the_same_wheel(built: Built) -> None:
    assert files_of(built.wheel_of_sdist) == built.files


def test_the_sdist_holds_what_it_takes_to_run_the_demo_and_the_tests(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {
        "LICENSE", "Makefile", "PKG-INFO", "README.md", "CHANGELOG.md", "constraints.txt",
        "pyproject.toml", "scripts/setup.sh", "scripts/test.py", "examples/demo.py",
        "tests/conftest.py", "tests/support/invariants.py",
    }  # fmt: skip
    assert any(name.startswith("docs/") for name in names)
    assert not any("__pycache__" in name or name.startswith(".venv") for name in names)
