PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles a module when it is first imported: most of torch's and transformers' never are.
INSTALL := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
PRODUCT := $(VENV)/.installed
TOOLS := $(VENV)/.test-tools
HARDWARE := verilator iverilog yosys
BROWSER := chromium
# As many as there are cores on the machine of the gate.
WORKERS := -n 2 --dist worksteal
# Empty is unset: without bytecode every process of the tests would compile the sources again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docs test test-long test-processors test-tools hardware-tools clean

demo: $(PRODUCT)  ## train, quantise and retrain the built-in model; writes runs/demo
	$(BIN)/chop demo --out runs/demo

docs: $(PRODUCT)  ## the documentation site, which `chop docs` opens and a wheel then has
	@echo "installing Sphinx, MyST and furo, if they are missing"
	@$(INSTALL) -e ".[docs]"
	@$(BIN)/python -m docs.site

# Types are checked beside the tests, and what mypy says is shown after them.
test: test-tools  ## style, spelling, types, layers, unit tests, doctests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports
	@echo "$(BIN)/mypy & $(BIN)/pytest $(WORKERS) --durations=40"; \
	$(BIN)/mypy > $(VENV)/mypy.log 2>&1 & types=$$!; \
	tests=0; $(BIN)/pytest $(WORKERS) --durations=40 || tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/mypy.log; test $$tests = 0 && test $$types = 0

test-long: test-tools  ## what takes minutes and repeats at length what `make test` shows in short
	$(BIN)/pytest $(WORKERS) -m long

test-processors: test-tools  ## what compares numbers, as four other processors compute it
	$(BIN)/python -m tests.processors -- $(WORKERS)

$(PRODUCT): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) -e .
	touch $@

# What only the tests need; Triton alone is 290 MB to fetch. Beside it libraries are compiled.
$(TOOLS): $(PRODUCT)
	$(BIN)/python -m tests.programs & $(INSTALL) -e ".[dev]" && wait $$!
	touch $@

# Two downloads side by side.
test-tools:
	@$(MAKE) --no-print-directory -j 2 $(TOOLS) hardware-tools

define installed
@missing=; for tool in $(1); do command -v $$tool > /dev/null || missing=1; done; \
test -z "$$missing" || { test "$$(id -u)" = 0 && command -v apt-get && apt-get -qq update && \
DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends $(1); \
} > /dev/null 2>&1 || echo "not installed: apt-get install --no-install-recommends $(1)"
endef

# Tests skip what is not there; those of circuits not where CI is set.
hardware-tools:  ## circuits' simulators and synthesis, and a browser, where this user may install
	$(call installed,$(HARDWARE))
	$(call installed,$(BROWSER))

clean:
	rm -rf $(VENV) runs src/chop/site build/notebooks
