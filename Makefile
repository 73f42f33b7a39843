# Everything here works on a fresh Debian 12 with `make`: the first target sets up .venv by itself.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

BIN := .venv/bin
STAMP := .venv/.complete
PYTEST := $(BIN)/pytest
WORKERS ?= 4
# More of them: many of the quick tests wait for a lock, a limit or another process.
QUICK_WORKERS ?= 6

# Without compiled files each of the thousands of processes of the tests compiles Caloron anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo pilot test check docs bench chaos venv lock clean

help:
	@echo "make demo    a sprint with the scripted agent on a sample project, live on this terminal"
	@echo "make pilot   whole sprints on a real Gitea, with people, kills and restarts; prints the figures"
	@echo "make test    lint, types, imports, the documentation, then every test"
	@echo "make check   lint, types and imports only"
	@echo "make docs    the documentation site, in build/site"
	@echo "make bench   the benchmarks"
	@echo "make chaos   the long crash tests (minutes)"
	@echo "make venv    the development environment in .venv"
	@echo "make lock    new requirements.lock and constraints.txt from pyproject.toml"
	@echo "make clean   remove .venv, .demo and every cache"

demo: $(STAMP)
	@scripts/demo.sh

pilot: $(STAMP)
	@rm -f build/pilot.md
	@CALORON_PILOT=build/pilot.md $(PYTEST) -v tests/acceptance/test_pilot.py tests/chaos/test_gitea_matrix.py
	@cat build/pilot.md

test: check docs
	@echo "== unit and integration tests"
	@$(PYTEST) -n $(QUICK_WORKERS) --dist worksteal tests/unit tests/integration
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

# The variable silences a notice that MkDocs will be replaced; it says nothing about this site.
docs: $(STAMP)
	@echo "== documentation"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html; with search: python3 -m http.server -b 127.0.0.1 -d build/site"

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
