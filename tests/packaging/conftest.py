"""What is built, and an environment that has nothing but the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from tests.packaging.pythons import present, supported
from tests.support.clean import ROOT, clean_environment

INSTALL_SECONDS = 600.0
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@dataclass(frozen=True)
class Built:
    """A wheel and an sdist of this tree, and the wheel that the sdist builds."""

    wheel: Path
    sdist: Path
    wheel_of_sdist: Path

    @cached_property
    def files(self) -> dict[str, bytes]:
        """What is in the wheel."""
        return files_of(self.wheel)

    @cached_property
    def info(self) -> dict[str, str]:
        """The files about the wheel itself, by their names."""
        folder = f"tenure-{PROJECT['project']['version']}.dist-info/"
        return {
            name.removeprefix(folder): text.decode()
            for name, text in self.files.items()
            if name.startswith(folder)
        }


def files_of(wheel: Path) -> dict[str, bytes]:
    """Name -> contents of every file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built by the backend that pyproject.toml names, and by nothing else."""
    home = tmp_path_factory.mktemp("built")
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--target", home / "backend",
        *PROJECT["build-system"]["requires"],
    )  # fmt: skip
    build(home, ROOT, home / "dist", "sdist", "wheel")
    [sdist] = (home / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(home / "unpacked", filter="data")
    [unpacked] = (home / "unpacked").iterdir()
    build(home, unpacked, home / "again", "wheel")
    [wheel], [again] = (home / "dist").glob("*.whl"), (home / "again").glob("*.whl")
    return Built(wheel, sdist, again)


def build(home: Path, tree: Path, to: Path, *targets: str) -> None:
    wanted = [word for target in targets for word in ("-t", target)]
    env = {**os.environ, "PYTHONPATH": str(home / "backend")}
    run(sys.executable, "-m", "hatchling", "build", "-d", to, *wanted, cwd=tree, env=env)


def run(*command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run to a good end; answers what was printed."""
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=INSTALL_SECONDS
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Fresh:
    """A virtual environment, a folder to work in, and a clean environment around both."""

    folder: Path
    env: dict[str, str]

    @property
    def bin(self) -> Path:
        return self.folder / "venv" / "bin"

    def run(self, *command: str | Path) -> str:
        """Run one of its programs to a good end; answers what was printed."""
        program, *arguments = command
        return run(self.bin / program, *arguments, cwd=self.folder, env=self.env)


@pytest.fixture(scope="session", params=supported())
def fresh(
    built: Built, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Fresh:
    """Nothing installed but the wheel and what it asks for, all of it built by others before.

    One for each supported version of Python that is on this machine.
    """
    python = present().get(request.param)
    if python is None:
        pytest.skip(f"there is no Python {request.param} on this machine")
    folder = tmp_path_factory.mktemp("fresh")
    made = Fresh(folder, clean_environment(folder / "home"))
    run(python, "-m", "venv", folder / "venv", env=made.env)
    made.run("python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", built.wheel)
    return made
