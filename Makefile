# `make help` lists what there is. Everything runs from .venv, which `make env` makes and keeps.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:

PYTHON ?= python3
FAULTS ?= 24
SEED ?= 1
BIN := .venv/bin
STAMP := .venv/.installed
STAGE := .ci/stage
PYTEST := $(BIN)/python -m pytest
FIRST_NOTEBOOK := example_notebooks/01_first_launch.ipynb

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/\1\t\2/' \
	  | while IFS=$$'\t' read -r target text; do printf '  make %-11s %s\n' "$$target" "$$text"; done

# ---------------------------------------------------------------- environment
.PHONY: env
env: $(STAMP) ## make .venv and install everything into it; reused while nothing has changed

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
	  f"Python 3.11 or newer is needed, and $(PYTHON) is {sys.version.split()[0]}. Name another: make env PYTHON=python3.12")'
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@echo 'Installing into .venv: some minutes the first time, seconds later.'
	@$(STAGE) environment $(BIN)/python -m pip install --quiet --editable '.[dev]' --constraint constraints.txt
	@touch $@

# ---------------------------------------------------------------- use
.PHONY: demo lab bench
demo: env ## run the first notebook on 2 workers, here, and show what it prints
	@$(BIN)/python example_notebooks/execute.py $(FIRST_NOTEBOOK)

lab: env ## open JupyterLab on the example notebooks
	@$(BIN)/python -m jupyterlab example_notebooks $$([ "$$(id -u)" != 0 ] || echo --allow-root)

bench: env ## measure launching and training beside Accelerate, torch, Fabric and torchrunx (minutes)
	@$(BIN)/python -m pip install --quiet --editable '.[dev,bench]' --constraint constraints.txt
	@$(BIN)/python -m benchmarks

# ---------------------------------------------------------------- tests, fastest first
.PHONY: test begin end
test: begin env check unit house training conformance processes notebooks faults widgets end ## the whole suite, fastest first

begin:
	@mkdir -p .make && rm -f .make/times

end:
	@printf '\n== how long each stage took\n' && cat .make/times

.PHONY: check formatting lint types layers unit house training conformance processes notebooks faults widgets
check: formatting lint types layers ## formatting, lint, types, layers of imports

formatting: env
	@$(STAGE) formatting $(BIN)/ruff format --check .

lint: env
	@$(STAGE) lint $(BIN)/ruff check .

types: env
	@$(STAGE) types $(BIN)/mypy

layers: env
	@$(STAGE) layers $(BIN)/lint-imports

unit: env ## rules and parts alone: no torch, no processes
	@$(STAGE) unit $(PYTEST) tests/unit

house: env ## the rules of the house, as tests
	@$(STAGE) house $(PYTEST) tests/house

training: env ## the Accelerator
	@$(STAGE) training $(PYTEST) tests/training

conformance: env ## Accelerate's own published tests, with this package in its place
	@$(STAGE) conformance $(PYTEST) tests/conformance

processes: env ## launches with real workers
	@$(STAGE) processes $(PYTEST) tests/processes

notebooks: env ## launches from real kernels, and the example notebooks
	@$(STAGE) notebooks $(PYTEST) tests/notebooks

faults: env ## random faults against real kernels; FAULTS=200 for many, SEED=7 for others
	@$(STAGE) faults $(PYTEST) tests/faults --faults $(FAULTS) --fault-seed $(SEED)

# The tests are of plain modules and need node alone; npm adds the type check.
widgets: ## the front end's tests and type check, where node is there
	@if ! command -v node > /dev/null; then echo 'widgets: not tested, since this machine has no node.'; exit 0; fi; \
	$(STAGE) widgets bash -euc 'cd widgets && node --test tests/*.test.js'; \
	if command -v npm > /dev/null; then \
	  [ widgets/node_modules/.package-lock.json -nt widgets/package-lock.json ] || npm --prefix widgets ci; \
	  $(STAGE) widget-types npm --prefix widgets run check; \
	fi

# ---------------------------------------------------------------- upkeep
.PHONY: format clean
format: env ## put the code in order: ruff's formatter and its safe fixes
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

clean: ## remove all that make made, .venv included
	@rm -rf .venv .make build dist *.egg-info widgets/node_modules
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
