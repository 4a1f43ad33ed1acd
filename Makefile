# Each target makes the virtual environment it needs, once; later calls go straight to the work.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-peers lint bench clean help
.DEFAULT_GOAL := help

help:
	@echo "make demo        the article's four demonstrations, run on the spot"
	@echo "make test        the test suite (core and dev packages)"
	@echo "make test-peers  compare with PyTorch, ONNX, JAX and transformers (large install)"
	@echo "make lint        ruff, pyright, import layers"
	@echo "make bench       qkv beside its peers and beside the limits of this machine (minutes)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"qkv needs Python 3.11 or newer, this is {v[0]}.{v[1]}; try: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(BIN)/python
	@echo "installing qkv into $(VENV), once"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing qkv and its development tools into $(VENV), once"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(VENV)/.core

$(VENV)/.peers: pyproject.toml $(VENV)/.dev
	@echo "installing the libraries qkv is compared with into $(VENV), once (minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,peers]'
	@touch $@

# Matrices this small lose more to handing work between threads than they gain.
demo: $(VENV)/.core
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python examples/demo.py

test: $(VENV)/.dev
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q

test-peers: $(VENV)/.peers
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/peers -o addopts="--import-mode=importlib --strict-markers -ra"

lint: $(VENV)/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports
	@$(BIN)/pyright

bench: $(VENV)/.core
	@$(BIN)/qkv bench

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
