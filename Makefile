# `make demo` and `make test` need python3 (3.11+) with pip and venv, and nothing else.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo env test test-kills test-postgres lint bench clean

demo: env
	$(BIN)/takg demo $(ARGUMENTS)

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

# Over 200 processes killed at random moments; then every invariant of the event log is checked.
test-kills: env
	$(BIN)/python tests/end_to_end/kills.py --kills 200

# Needs the server's programs (Debian: postgresql); starts a server of its own and removes it.
test-postgres: env
	$(BIN)/python tests/storage/with_postgres.py

bench: env
	$(BIN)/python benchmarks/model.py
	$(BIN)/python benchmarks/acquisition.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
