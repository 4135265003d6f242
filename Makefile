# `make test` and `make env` need python3 (3.11+) with pip and venv, and nothing else.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: env test lint bench clean

env: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

lint: env
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest

bench: env
	$(BIN)/python benchmarks/model.py
	$(BIN)/python benchmarks/acquisition.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
