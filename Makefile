# Everything here works on a fresh Debian 12 with `make`: the first target sets up .venv by itself.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

BIN := .venv/bin
STAMP := .venv/.complete
PYTEST := $(BIN)/pytest
WORKERS ?= 4

.PHONY: help demo test check bench chaos venv lock clean

help:
	@echo "make demo    a sprint with the scripted agent on a sample project, live on this terminal"
	@echo "make test    lint, types, imports, then every test"
	@echo "make check   lint, types and imports only"
	@echo "make bench   the benchmarks"
	@echo "make chaos   the long crash tests (minutes)"
	@echo "make venv    the development environment in .venv"
	@echo "make lock    new requirements.lock and constraints.txt from pyproject.toml"
	@echo "make clean   remove .venv, .demo and every cache"

demo: $(STAMP)
	@scripts/demo.sh

test: check
	@echo "== unit and integration tests"
	@$(PYTEST) -n $(WORKERS) tests/unit tests/integration
	@echo "== acceptance tests: whole sprints as a user runs them"
	@$(PYTEST) -n $(WORKERS) tests/acceptance -m "not long"
	@echo "== crash tests (the long ones: make chaos)"
	@$(PYTEST) tests/chaos -m "not long"

check: $(STAMP)
	@echo "== lint"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "== types"
	@$(BIN)/mypy
	@echo "== imports"
	@$(BIN)/lint-imports --no-cache

bench: $(STAMP)
	@$(BIN)/python -m benchmarks

chaos: $(STAMP)
	@$(PYTEST) tests/chaos tests/acceptance -m long

venv: $(STAMP)

$(STAMP): requirements.lock pyproject.toml scripts/setup.sh
	@scripts/setup.sh
	@touch $@

lock:
	@scripts/lock.sh

clean:
	@rm -rf .venv .demo build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@rm -rf src/*.egg-info
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
