# One command for everything: make demo | test | check | docs | rehearsal | bench | stress | wheel. The environment is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Some containers set this variable. Each process would then compile all modules that it imports, for half a minute.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check docs rehearsal bench stress wheel

demo: $(READY)
	$(BIN)/ani demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@$(MAKE) --no-print-directory docs

# Into site/; a warning, such as a link that leads nowhere, is an error. Needs no network.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# Every command of docs/reproduce.md in miniature, in minutes.
rehearsal: $(READY)
	$(BIN)/python stress/rehearsal

bench: $(READY)
	$(BIN)/python benchmarks/all.py

# Into dist/, to be installed without the checkout: pip install 'dist/ani-….whl[train]'.
wheel: $(READY)
	$(BIN)/pip wheel -qq --no-deps --wheel-dir dist .

# Minutes of what `make test` has no time for; each script prints what it counted and fails if anything did.
stress: $(READY)
	HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -q -n 2 --dist worksteal tests/invariants tests/serving tests/calculator/test_serving.py
	HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -q -n 2 --dist worksteal tests/encoders tests/numbers tests/injection tests/probing
	HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -q -n 2 --dist worksteal tests/compare tests/training
	HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -q -n 2 --dist worksteal -m hypothesis
	ANI_STRESS=1 $(BIN)/python -m pytest -q -n 0 tests/test_separation.py
	$(BIN)/python stress/rehearsal --full-size
	@set -e; for script in $(sort $(wildcard stress/*.py)); do echo "== $$script"; $(BIN)/python $$script; done

# A pip of 2023 takes twice as long. --no-compile: most of the modules are never imported.
$(READY): pyproject.toml constraints.txt requirements-assets.txt requirements-vllm.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ani needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "installing into $(VENV), some one to three minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq --upgrade 'pip>=26'
	$(BIN)/pip install -qq --no-compile -c constraints.txt -e '.[dev]'
	$(BIN)/pip install -qq --no-compile --no-deps -r requirements-assets.txt -r requirements-vllm.txt
	@touch $@
