#!/usr/bin/env bash
# Creates .venv with the first Python >= 3.11 that can make one, and installs Tenure with all tools,
# at the versions of constraints.txt. PYTHON=... names the interpreter to use.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

can_make_venv() {
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

chosen=""
without_venv=""
for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    is_new_enough "$candidate" || continue
    if can_make_venv "$candidate"; then
        chosen=$candidate
        break
    fi
    without_venv=${without_venv:-$candidate}
done

if [ -z "$chosen" ]; then
    if [ -n "$without_venv" ]; then
        echo "setup: $without_venv has no ensurepip, so it cannot create a virtual environment." >&2
        echo "       On Debian or Ubuntu: apt install python3-venv" >&2
    else
        echo "setup: no Python 3.11 or newer found (tried: ${PYTHON:-python3 python3.13 python3.12 python3.11})." >&2
        echo "       Install one, or name it: make setup PYTHON=/path/to/python3" >&2
    fi
    exit 1
fi

echo "setup: $("$chosen" --version), installing into .venv"
"$chosen" -m venv --clear .venv
.venv/bin/python -m pip install --disable-pip-version-check -qq \
    --constraint constraints.txt --editable '.[dev,postgres]'
