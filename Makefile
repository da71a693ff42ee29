# Every verb sets up what it needs. `make` alone lists the verbs.

# With PYTHON=... every verb uses an environment of its own for that version: .venvs/3.12
VERSION := $(if $(PYTHON),$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
VENV := $(if $(PYTHON),$(if $(VERSION),.venvs/$(VERSION),$(error PYTHON=$(PYTHON) does not run)),.venv)
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
RUNS := $(VENV)/.runs
ARGS ?=

# Tests and benchmarks start thousands of processes; each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo check format quick test trust kills soak bench docs clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with all tools (instant when nothing changed; PYTHON=... for .venvs/3.12)

$(READY): pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" scripts/setup.sh
	@touch $(RUNS) $@

# What is needed to run Tenure, without the tools to develop it.
$(RUNS): pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" scripts/setup.sh $(if $(wildcard $(READY)),,run)
	@touch $(wildcard $(READY)) $@

demo: $(RUNS) ## three thousand jobs, two workers, one of them killed: half a minute (ARGS="--keep DIR")
	@$(PY) -m examples.demo $(ARGS)

check: $(READY) ## format, lint, types and import direction, without changing a file
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports
	@$(PY) scripts/check_words.py

format: $(READY) ## format the code and apply the safe lint fixes
	@$(VENV)/bin/ruff check --fix-only --quiet .
	@$(VENV)/bin/ruff format .

quick: $(READY) ## the inner loop: tests not marked slow, below 90 seconds (ARGS="-k lease" to choose)
	@$(PY) -m pytest -q -m "not slow" -n 3 $(ARGS)

test: $(READY) ## every test, and a share of each long layer: 12 minutes (ARGS="unit model" to choose folders)
	@$(PY) scripts/test.py $(ARGS)

trust: $(READY) ## the long layers whole, with a table: more than an hour (ARGS="chaos points", ARGS="chaos --kills 5000")
	@$(PY) -m scripts.trust $(ARGS)

kills: $(READY) ## kill the workers of other queues as well, and compare
	@$(PY) -m bench.kills $(ARGS)

soak: $(READY) ## one worker at half of its peak for twenty minutes on each store (ARGS="--minutes 5")
	@$(PY) -m bench.soak $(ARGS)

bench: $(READY) ## run all benchmarks
	@$(PY) -m bench all

docs: $(READY) ## build the documentation into site/ (a broken link or a page in no menu fails)
	@$(PY) scripts/make_reference.py --check
	@$(PY) scripts/make_site.py

clean: ## remove .venv, .venvs, caches and build results
	@rm -rf .venv .venvs build dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
