"""A machine that has never seen Tenure, as far as a test can have one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# How pip reaches its index: certificates and proxies. Variables of pip itself are all kept.
NETWORK = re.compile(
    r"PIP_\w+|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|(https?|no|all)_proxy\Z", re.IGNORECASE
)


def clone(to: Path) -> Path:
    """The project as it would be after `git clone`, with what is not committed yet."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)
    return to


def clean_environment(home: Path) -> dict[str, str]:
    """A path, a home, a language, a place for temporary files, and how pip reaches its index."""
    (home / "tmp").mkdir(parents=True)
    ours = str(ROOT / ".venv")
    path = [each for each in os.environ["PATH"].split(os.pathsep) if not each.startswith(ours)]
    kept = {name: value for name, value in os.environ.items() if NETWORK.match(name)}
    return {
        **pip_config(os.environ), **kept,
        "PATH": os.pathsep.join(path), "HOME": str(home), "LANG": "C.UTF-8",
        "TMPDIR": str(home / "tmp"),
    }  # fmt: skip


def pip_config(env: Mapping[str, str]) -> dict[str, str]:
    """The user's file of settings for pip, which another home would hide."""
    config = Path(env.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for path in (config / "pip" / "pip.conf", Path.home() / ".pip" / "pip.conf"):
        if path.is_file():
            return {"PIP_CONFIG_FILE": str(path)}
    return {}
