# Nearfield: `make bench` runs the main job, `make test` the tests; both set up .venv by themselves.
# Needs Python 3.10 or newer and make, nothing else.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Threads that spin while they wait slow each other down on few cores; large arrays should not go back to the system.
export GOMP_SPINCOUNT := 0
export MALLOC_MMAP_THRESHOLD_ := 1073741824
export MALLOC_TRIM_THRESHOLD_ := 2147483648

.DEFAULT_GOAL := help
.PHONY: help bench test programs check format lint types slow fuzz speed docs tutorials site oldest wheel extras clean

help:  ## say what each target does
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-9s %s\n", $$1, $$2}'

$(VENV)/installed: pyproject.toml constraints.txt
	@echo "Setting up Nearfield in $(VENV) (about two minutes, once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --constraint constraints.txt --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "Adding the development tools"
	@$(PIP) install --constraint constraints.txt --editable ".[dev]"
	@touch $@

bench: $(VENV)/installed  ## set up, compare methods fairly on the built-in data, write leaderboard and report
	@$(BIN)/nearfield bench

PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal $(if $(COVERAGE),--cov=nearfield --cov-report=)

test: $(VENV)/installed-dev  ## set up and run the tests, one process a core (COVERAGE=1: and measure their coverage)
	@$(PYTEST)
	@$(if $(COVERAGE),echo "coverage of the package: $$($(BIN)/coverage report --format=total) %")

programs: $(VENV)/installed-dev  ## the tests that start programs: clusters, servers, browsers, torchrun, tutorials
	@$(PYTEST) -m "programs and not slow"

check: lint types test programs  ## formatting, lint, types and all tests but the slow ones

node_modules/installed: package.json package-lock.json
	@npm ci --silent && touch $@

format: $(VENV)/installed-dev  ## format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .
	@if command -v npm > /dev/null; then $(MAKE) --silent node_modules/installed && npm run --silent format; fi

lint: $(VENV)/installed-dev  ## formatting, lint and import contracts, without changing anything
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/lint-imports --no-logo
	@if command -v npm > /dev/null; then $(MAKE) --silent node_modules/installed && npm run --silent lint; \
		else echo "npm is not installed: the JavaScript of the report is not checked"; fi

types: $(VENV)/installed-dev  ## strict type checking of package, tests, benchmarks and docs
	@$(BIN)/mypy

slow: $(VENV)/installed-dev  ## the tests that take minutes
	@$(BIN)/python -m pytest -m slow

fuzz: $(VENV)/installed-dev  ## hostile input for losses, constructors, metrics, commands; kills; minutes
	@$(BIN)/python tests/fuzz.py

speed: $(VENV)/installed-dev  ## time and memory beside pytorch-metric-learning and the bare matrix product
	@$(BIN)/python -m benchmarks.speed

docs: $(VENV)/installed-dev  ## write the generated pages of docs/ again (methods, command line)
	@$(BIN)/python docs/generate.py

tutorials: $(VENV)/installed-dev  ## run the tutorials and write what their blocks print into the pages; minutes
	@for page in $$(ls docs/tutorials/*.md | grep -v index.md); do $(BIN)/python docs/run_tutorials.py $$page || exit 1; done

$(VENV)/installed-site: $(VENV)/installed
	@$(PIP) install --constraint constraints.txt --editable ".[site]"
	@touch $@

site: $(VENV)/installed-site  ## build the documentation as a site into ./site, offline, and check every link
	@$(BIN)/python docs/build_site.py

oldest:  ## the lower bounds of all dependencies together, with the tests of the library (PYTHON=python3.10)
	@test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	@.venv-oldest/bin/pip install --quiet --constraint constraints-oldest.txt --editable ".[pretrained]" pytest hypothesis
	@.venv-oldest/bin/python -m pytest -W default -p no:anyio tests/test_public.py tests/test_config.py tests/test_losses.py \
		tests/test_metrics.py tests/test_samplers.py tests/test_training.py tests/test_bench.py

wheel:  ## build wheel and sdist, try the wheel in an empty environment away from the sources
	@PYTHON=$(PYTHON) .ci/wheel

extras:  ## try every extra of the package in an environment of its own; minutes
	@PYTHON=$(PYTHON) .ci/extras

clean:  ## remove the environment and the caches, keep the runs
	rm -rf $(VENV) node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* build site src/*.egg-info
