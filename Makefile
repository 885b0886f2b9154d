PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
PRODUCT := $(VENV)/.installed
TOOLS := $(VENV)/.test-tools

.PHONY: demo test test-long clean

demo: $(PRODUCT)  ## train, quantise and retrain the built-in model; writes runs/demo
	$(BIN)/chop demo --out runs/demo

test: $(TOOLS)  ## style, spelling, types, layers, unit tests, doctests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist worksteal

test-long: $(TOOLS)  ## what takes minutes and repeats at length what `make test` shows in short
	$(BIN)/pytest -n 2 --dist worksteal -m long

$(PRODUCT): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) -e .
	touch $@

# What only the tests need; Triton alone is 290 MB to fetch.
$(TOOLS): $(PRODUCT)
	$(INSTALL) -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) runs
