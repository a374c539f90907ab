# Each target does all of its own set-up in .venv; a second run finds it done. The demo needs less than the rest.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-for-demo
SATELLITES := $(wildcard packages/*)
NATIVE := $(wildcard native/*.hpp native/bindings/*) CMakeLists.txt src/tokenloom/__init__.py
PYTHON ?= python3

.PHONY: demo install test test-all search mutants adapters peer-newest simulate lint types size docs bench stub sanitize fuzz fuzz-repro kill-loop peer-suite dist one-wheel wheel-check changelog clean

demo: $(DEMO_STAMP)
	$(BIN)/tokenloom demo

# The core with all extras and the satellites, into the environment of PYTHON.
install:
	$(PYTHON) -m pip install ".[all]" $(SATELLITES:%=./%)

# Tests in three tiers, see CONTRIBUTING.md: `test` is what a change can break, `test-all` everything, `search` fresh draws.
RETRO_PEER := build/megatron-core-0.15.3
WORKERS ?= $(shell getconf _NPROCESSORS_ONLN)
PYTEST := $(BIN)/python -m pytest --numprocesses=$(WORKERS) --maxprocesses=16 --dist=worksteal
test: $(STAMP)
	$(PYTEST) $(TEST_OPTIONS)

test-all: $(STAMP) $(RETRO_PEER)/.installed
	tests/browser/install
	$(PYTEST) -m "" --hypothesis-profile=all $(TEST_OPTIONS)
	tests/adapters/check
	tests/wheel/check
	tests/peer/newest || [ $$? -eq 3 ]  # 3: no Python here that it runs on, which it says

# Draws what `make test` does not. Each find is printed with its reproduction and becomes a test of its own; a find stops
# nothing. SEARCH_ROUNDS repeats the tests that draw.
SEARCH_ROUNDS ?= 1
search: $(STAMP) $(RETRO_PEER)/.installed
	-for round in $$(seq $(SEARCH_ROUNDS)); do \
	  TOKENLOOM_TEST_SEED=fresh $(PYTEST) -m draws --hypothesis-profile=search $(TEST_OPTIONS); done
	-$(MAKE) simulate SEEDS=1000000 SECONDS_EACH=60
	-$(MAKE) sanitize
	-$(MAKE) fuzz
	-$(MAKE) kill-loop
	-$(MAKE) mutants

# Plants small faults, one at a time, and lists those that `make test` would not notice: tests/mutants/README.md.
mutants: $(STAMP)
	$(BIN)/python -m tests.mutants $(MUTANTS_OPTIONS)

# Adapters with the real frameworks, in an environment of their own, where none of these tests may skip.
adapters: $(STAMP)
	tests/adapters/check

# The comparisons with the reference once more, with its newest release on a Python of its own: VERSION=0.19.2.
peer-newest:
	tests/peer/newest

# Processes, disk and clock in one process: what fails is printed with the command that tells its story.
SEEDS ?= 20000
SECONDS_EACH ?= 1000000
simulate: $(STAMP)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --seconds $(SECONDS_EACH)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

# Lines of each room beside its budget.
size: $(STAMP)
	$(BIN)/python tools/size.py --enforce

# The site in build/site, from pages that lie in docs/ and those that follow from the code; links are checked. The builder
# has an environment of its own.
DOCS := build/docs-env
docs: $(STAMP) $(DOCS)/.installed
	$(BIN)/python -m docs_site.gather build/pages
	$(DOCS)/bin/zensical build --clean --strict
	$(BIN)/python -m docs_site.check build/site

$(DOCS)/.installed: docs_site/requirements.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install -q -r docs_site/requirements.txt
	touch $@

# Half an hour; `make bench BENCH=quick` takes minutes. Peers are installed into environments of their own.
BENCH ?= full
bench: $(STAMP) $(RETRO_PEER)/.installed
	$(BIN)/python benchmarks/run.py --mode $(BENCH)

# The kernels' tests with address, undefined-behaviour and thread sanitizers; all of it lies in build/.
sanitize: $(STAMP)
	sanitize/run $(TESTS)

# Fuzzes each of the targets in fuzz/targets for so long: `make fuzz FUZZ_SECONDS=600 TARGETS="idx columns"`.
FUZZ_SECONDS ?= 60
fuzz: $(STAMP)
	fuzz/prepare
	$(BIN)/python -m fuzz.run --seconds $(FUZZ_SECONDS) $(if $(TARGETS),--targets $(TARGETS)) $(FUZZ_OPTIONS)

fuzz-repro: $(STAMP)
	fuzz/prepare
	$(BIN)/python -m fuzz.run --targets $(TARGET) --input $(INPUT)

# Kills all writers of datasets at random, and lets their calls fail; then looks whether what opens is old or new.
KILLS ?= 1000
FAULTS ?= $(KILLS)
kill-loop: $(STAMP)
	$(BIN)/python -m tests.kill_loop --kills $(KILLS) --faults $(FAULTS)

# The data tests of a Megatron checkout, with tokenloom's data modules in its place: `make peer-suite MEGATRON=path`. The
# Python must have what Megatron needs, and tokenloom; the one of this environment by default.
PEER_PYTHON ?= $(BIN)/python
peer-suite: $(STAMP)
	$(BIN)/python -m peer_suite.run $(MEGATRON) --python $(abspath $(PEER_PYTHON)) $(if $(FILES),--files $(FILES))

# A wheel in an environment of its own, where it is imported and its command runs; reuses what the set-up compiled.
one-wheel: $(STAMP)
	rm -rf build/one-wheel
	@$(BIN)/python -m pip wheel -q --no-build-isolation --no-deps --wheel-dir build/one-wheel .
	@$(PYTHON) -m venv build/one-wheel/env
	@build/one-wheel/env/bin/python -m pip install -q build/one-wheel/*.whl
	cd build/one-wheel && env/bin/python -c "import tokenloom; print(tokenloom.__file__)" && env/bin/tokenloom --version

# What is released, in dist/; and whether it works where there is no compiler. See tests/wheel/.
dist:
	tests/wheel/build

wheel-check: $(STAMP)
	tests/wheel/check

# The committed stub of the compiled module; a test fails when it is out of date.
stub: $(STAMP)
	$(BIN)/python native/make_stub.py src/tokenloom/_native.pyi

# What pip says is shown when it fails.
, := ,
INSTALL_LOG := $(VENV)/install.log
pip_install = $(BIN)/python -m pip install $(1) > $(INSTALL_LOG) 2>&1 || { cat $(INSTALL_LOG) >&2; exit 1; }

$(DEMO_STAMP): pyproject.toml $(NATIVE)
	@echo "set-up: an environment in $(VENV), and what compiles the kernels"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(call pip_install,"scikit-build-core>=1.0" "nanobind>=2.9" "flit_core>=3.12" ninja $$(command -v cmake > /dev/null || echo cmake))
	@echo "set-up: compiling, a minute or two; libraries for tokenizing"
	@$(call pip_install,--no-build-isolation -e ".[preprocess]")
	@touch $@

# The last release of megatron-core with RETRO, beside the newer one: tests and benchmarks run it in a process of its own.
$(RETRO_PEER)/.installed: $(DEMO_STAMP)
	@$(call pip_install,--no-deps --target $(RETRO_PEER) megatron-core==0.15.3)
	@touch $@

# torch is named with its version: the newest one would bring gigabytes of CUDA packages.
$(STAMP): $(DEMO_STAMP) $(SATELLITES:%=%/pyproject.toml)
	@echo "set-up: torch, and all that tests need"
	@$(call pip_install,torch==2.13.0)
	@$(call pip_install,--no-build-isolation -e ".[all$(,)test$(,)dev]" $(SATELLITES:%=-e %))
	@touch $@

# Moves the fragments of changelog.d/ into CHANGELOG.md: `make changelog VERSION=0.3.0`.
changelog: $(DEMO_STAMP)
	@$(call pip_install,towncrier==26.9.0)
	$(BIN)/towncrier build --yes --version $(VERSION)

clean:
	rm -rf $(VENV) build dist
