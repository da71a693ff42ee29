# Every verb sets up what it needs. `make` alone lists the verbs.

PY := .venv/bin/python
READY := .venv/.ready
RUNS := .venv/.runs
KILLS ?= 1000
IMAGES ?= 10000
SECONDS ?= 60
STEPS ?= $(or $(TENURE_STEPS),2000)
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo check format quick test wire points explore simulate chaos bugs powerloss crowd fuzz kills soak bench docs clean

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv with all tools (instant when nothing changed; PYTHON=... to choose)

$(READY): pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" scripts/setup.sh
	@touch $(RUNS) $@

# What is needed to run Tenure, without the tools to develop it.
$(RUNS): pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" scripts/setup.sh $(if $(wildcard $(READY)),,run)
	@touch $(wildcard $(READY)) $@

demo: $(RUNS) ## three thousand jobs, two workers, one of them killed: half a minute (ARGS="--keep DIR")
	@$(PY) -m examples.demo $(ARGS)

check: $(READY) ## format, lint, types and import direction, without changing a file
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports
	@$(PY) scripts/check_words.py

format: $(READY) ## format the code and apply the safe lint fixes
	@.venv/bin/ruff check --fix-only --quiet .
	@.venv/bin/ruff format .

quick: $(READY) ## the inner loop: tests not marked slow, below 2 minutes (ARGS="-k lease" to choose)
	@$(PY) -m pytest -q -m "not slow" -n 2 $(ARGS)

test: $(READY) ## every test, part by part, with the time of each part (ARGS="unit model" to choose)
	@$(PY) scripts/test.py $(ARGS)

wire: $(READY) ## cut the wire at every message, run the contract through PgBouncer, lose a primary: 10 minutes
	@$(PY) -m pytest -n 2 --whole tests/wire $(ARGS)
	@$(PY) -m pytest -n 2 --whole --pooler tests/contract $(ARGS)

points: $(READY) ## die before each statement of each operation, on both stores, and print the table: 2 minutes
	@$(PY) -m tests.points $(ARGS)

explore: $(READY) ## walk the state machine at random for long (TENURE_STEPS=100000 make explore)
	@$(PY) -m tests.model.explore --steps $(STEPS)

simulate: $(READY) ## the real code on a virtual clock, with faults (STEPS=20000000 or MINUTES=40; SEED=7 for one run again)
	@$(PY) -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(filter command environment,$(firstword $(origin STEPS))),--steps $(STEPS)) $(ARGS)

bugs: $(READY) ## put known bugs into a copy of the code, one at a time, and see what finds each (ARGS="read-back")
	@$(PY) -m scripts.bugs $(ARGS)

chaos: $(READY) ## kill, stop and cut off workers and servers at random (KILLS=5000 ARGS="--store postgres")
	@$(PY) -m tests.chaos --kills $(KILLS) $(ARGS)

kills: $(READY) ## kill the workers of other queues as well, and compare
	@$(PY) -m bench.kills $(ARGS)

soak: $(READY) ## one worker at half of its peak for twenty minutes on each store (ARGS="--minutes 5")
	@$(PY) -m bench.soak $(ARGS)

powerloss: $(READY) ## cut the power of SQLite at every sync, and break its disk at every step (IMAGES=100000 SEED=7)
	@$(PY) -m tests.power --images $(IMAGES) --seed $(or $(SEED),1) $(ARGS)
	@$(PY) -m pytest -q -n 2 --whole tests/faults/test_sqlite_steps.py

crowd: $(READY) ## 32 processes on one SQLite file for a minute (SECONDS=600)
	@$(PY) -m tests.processes --seconds $(SECONDS) $(ARGS)

fuzz: $(READY) ## nonsense as payloads, filters, URLs and arguments of commands (EXAMPLES=20000)
	@TENURE_EXAMPLES=$(or $(EXAMPLES),5000) $(PY) -m pytest -q -n 2 tests/fuzz $(ARGS)

bench: $(READY) ## run all benchmarks
	@$(PY) -m bench all

docs: $(READY) ## build the documentation into site/ (a broken link or a page in no menu fails)
	@$(PY) scripts/make_reference.py --check
	@$(PY) scripts/make_site.py

clean: ## remove .venv, caches and build results
	@rm -rf .venv build dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
