# What people and CI run. Needs Python >= 3.11 and make; everything else goes into .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup demo soak test test-pure test-page test-torch compiled test-compiled wheels check bench mutants clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Dovetail needs Python 3.11 or newer; set PYTHON=python3.12, say"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[plot,lab,grpc,mlperf]' --group dev
	@touch $(STAMP)

demo: setup
	$(BIN)/dovetail demo

test: setup
	$(BIN)/python -m pytest

# Only what needs no process, socket or model: a few seconds.
test-pure: setup
	$(BIN)/python -m pytest -m "not cpu"

# The dashboard in a browser, which `test` does only where there is one; Debian's Chromium is some 400 MB.
test-page: setup
	scripts/chromium.sh
	$(BIN)/python -m pytest tests/serve/test_dashboard_page.py

# Kernels of torch models; the extra is some 200 MB.
test-torch: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[torch]'
	$(BIN)/python -m pytest tests/torch

# What every event passes through as extension modules, beside the Python files, in build/compiled; needs a C compiler.
# To use it: PYTHONPATH=build/compiled
compiled: setup
	DOVETAIL_COMPILED=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target build/compiled .

test-compiled: compiled
	DOVETAIL_COMPILED=1 PYTHONPATH=build/compiled $(BIN)/python -m pytest -m "not cpu and not interpreted"

# What to put into a package index: the compiled wheel for this platform, which pip prefers, and the one for all others.
wheels: setup
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	DOVETAIL_COMPILED=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: setup
	$(BIN)/python bench/simulator.py
	$(BIN)/python bench/live.py
	$(BIN)/python bench/front.py
	$(BIN)/python bench/plan.py
	$(BIN)/python bench/predict.py
	$(BIN)/python bench/place.py
	$(BIN)/python bench/ideas.py
	$(BIN)/python bench/memory.py
	$(BIN)/python bench/gate.py
	$(BIN)/python bench/ipc.py

# Half an hour at 70 % of what the machine can do: do memory or latency drift? MINUTES=2 for less.
soak: setup
	$(BIN)/python scripts/soak.py --minutes $(or $(MINUTES),30)

# Do the tests bite? Rules are changed on purpose, one at a time. Takes an hour; run it again and it goes on.
mutants: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --group mutants
	$(BIN)/python scripts/mutants.py rules
	$(BIN)/python scripts/mutants.py sample

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist out
