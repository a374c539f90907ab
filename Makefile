# Each target does all of its own set-up in .venv; a second run finds it done.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NATIVE := $(wildcard native/*.hpp native/bindings/*) CMakeLists.txt
PYTHON ?= python3

.PHONY: demo test lint types bench stub clean

demo: $(STAMP)
	$(BIN)/tokenloom demo

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Half an hour; `make bench BENCH=quick` takes minutes. Peers are installed into environments of their own.
BENCH ?= full
bench: $(STAMP)
	$(BIN)/python benchmarks/run.py --mode $(BENCH)

# The committed stub of the compiled module; a test fails when it is out of date.
stub: $(STAMP)
	$(BIN)/python -m nanobind.stubgen -m tokenloom._native -o src/tokenloom/_native.pyi

# torch is named with its version: the newest one would bring gigabytes of CUDA packages.
$(STAMP): pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "scikit-build-core>=1.0" "nanobind>=2.9" ninja torch==2.13.0
	$(BIN)/python -m pip install -q --no-build-isolation -e ".[all,test,dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist
