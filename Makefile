PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-long clean

demo: $(STAMP)  ## train, quantise and retrain the built-in model; writes runs/demo
	$(BIN)/chop demo --out runs/demo

test: $(STAMP)  ## style, types, layers, unit tests, doctests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist worksteal

test-long: $(STAMP)  ## what takes minutes and repeats at length what `make test` shows in short
	$(BIN)/pytest -n 2 --dist worksteal -m long

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) runs
