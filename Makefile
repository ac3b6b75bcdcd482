# make demo and make test are the commands of the README. Each creates the environment it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Three workers on two cores: some tests wait for processes that they started.
WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# Bytecode is cached even if the shell disables it: the tests start many processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-slow test-all attack coverage check style types docs package clean

demo: $(INSTALLED)
	$(BIN)/softperm study demo --out demo

test: style
	$(PYTEST) -m "not slow" --durations 10

# Real kills, clusters, an installed wheel, every kernel under the interpreter.
test-slow: $(INSTALLED)
	$(PYTEST) -m slow --durations 10

test-all: test test-slow

# A thousand mutations of every kind of file, a thousand kills over all commands that write.
attack: $(INSTALLED)
	SOFTPERM_ATTACKS=$(or $(COUNT),1000) $(PYTEST) tests/attacks

coverage: $(INSTALLED)
	$(PYTEST) --cov softperm --cov-report term:skip-covered

check: style types

style: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/pyright

docs: $(INSTALLED)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs docs/_build/html
	@echo "open docs/_build/html/index.html"

package: $(INSTALLED)
	$(BIN)/python -m build

# The index of torch depends on the machine, so that no list of hashes could cover it.
$(INSTALLED): pyproject.toml constraints.txt requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement requirements.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(INSTALLED)

clean:
	rm -rf $(VENV) demo dist docs/_build docs/examples docs/reference
