# The two commands of the README. Each makes the environment it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TYPED := $(VENV)/.typed
# Three for two cores: some tests wait for processes that they started.
WORKERS ?= 3

# Compiled files are kept whatever the shell says: the tests start many processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check style types tests clean

demo: $(INSTALLED)
	$(BIN)/softperm study synthetic --out demo

# Types are checked while the tests wait for their processes.
test: $(INSTALLED)
	$(MAKE) --jobs 2 --no-print-directory style types tests

check: style types

style: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Types are looked at again when the library or its dependencies changed.
types: $(TYPED)

$(TYPED): $(INSTALLED) $(shell find softperm -name '*.py')
	$(BIN)/pyright
	touch $(TYPED)

tests: style
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) demo
