#!/usr/bin/env bash
# Creates .venv with the first Python >= 3.11 that can make one, and installs Tenure with all tools,
# at the versions of constraints.txt; `scripts/setup.sh run` installs only what it takes to run it.
# PYTHON=... names the interpreter to use, VENV=... another folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

can_make_venv() {
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

venv=${VENV:-.venv}
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

case "${1:-all}" in
run) what="." ;;
all) what=".[dev,docs,postgres]" ;;
*)
    echo "setup: it is scripts/setup.sh or scripts/setup.sh run, not: $1" >&2
    exit 2
    ;;
esac

# What pip is busy with: one line that changes in a terminal, nothing elsewhere.
show() {
    local line columns
    [ -t 1 ] || { cat >/dev/null; return; }
    columns=$(tput cols 2>/dev/null || echo 80)
    while IFS= read -r line; do
        case "$line" in
        *Collecting* | *Downloading* | *Processing* | *Building* | *Installing*)
            line="setup: ${line#"${line%%[! ]*}"}"
            printf '\r\033[K%s' "${line:0:columns-1}"
            ;;
        esac
    done
    printf '\r\033[K'
}

echo "setup: $("$chosen" --version), installing into $venv"
started=$SECONDS
"$chosen" -m venv --clear "$venv"
"$venv"/bin/python -m pip install --disable-pip-version-check --no-input --progress-bar off \
    --constraint constraints.txt --editable "$what" 2>"$venv"/setup.log | show || {
    cat "$venv"/setup.log >&2
    echo "setup: pip could not install what is needed; does it reach its package index?" >&2
    exit 1
}
echo "setup: done in $((SECONDS - started)) s"
