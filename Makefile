# Every target does its own set-up: on a fresh clone `make demo` and `make test` just work.
# What is needed beforehand: Python >= 3.11 and make; Java 17 for the Spark parts.

VENV := .venv
BIN := $(VENV)/bin
DEV_STAMP := $(VENV)/.installed-dev
BENCH_STAMP := $(VENV)/.installed-bench
DOCS_STAMP := $(VENV)/.installed-docs
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long test-pythons test-codec test-twin area check lint types bench docs pictures clean

# Two workers more than there are cores, and four at least: most of a test is waiting. Five at most: the
# rest of the machine is for the processes that the tests start.
CORES_HERE := $(shell nproc 2>/dev/null || echo 2)
WORKERS := $(shell echo $$(( ($(CORES_HERE) < 2 ? 2 : $(CORES_HERE) > 3 ? 3 : $(CORES_HERE)) + 2 )))
PYTEST = $(BIN)/pytest -n $(WORKERS) $(if $(ONLY),--only=$(ONLY))

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo '  variables: PYTHON=…  demo: ARGS="--input FILE --json"'
	@echo '             test, test-long: ONLY=queue PYTEST_ARGS="-k …" WORKERS=4'
	@echo '             bench: ONLY=spine JSON=FILE RUNS=5 QUICK=1 CORES=0,1'

setup: $(DEV_STAMP) ## make .venv and install the package with its development tools
	@:

# The first interpreter that runs and is new enough; PYTHON=… names another one.
$(BIN)/python:
	@for python in $(if $(PYTHON),'$(PYTHON)',python3.11 python3); do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "setup: making $(VENV) with $$("$$python" --version)"; \
			"$$python" -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }; \
			exit 0; \
		fi; \
	done; \
	echo "setup: Python 3.11 or newer is needed; found" \
		"$$($(or $(PYTHON),python3) --version 2>&1 | head -n 1). Name one: make PYTHON=/path/to/python3.11" >&2; \
	exit 1

$(DEV_STAMP): pyproject.toml p2pmsg/native/hatch_build.py p2pmsg/native/compiled.pyx | $(BIN)/python
	@echo "setup: installing p2pmsg and its development tools"
	@$(PIP_INSTALL) --editable '.[dev]'
	@$(BIN)/p2pmsg --version
	@touch $@

# Zenoh is a peer of the benchmark only and has no wheel for some machines: go on without it.
$(BENCH_STAMP): pyproject.toml $(DEV_STAMP)
	@if $(PIP_INSTALL) --editable '.[bench]'; then touch $@; \
	else echo "bench: eclipse-zenoh does not install here; its row will say so" >&2; fi

demo: setup ## run the market feed demo; ARGS goes to `p2pmsg demo`
	@$(BIN)/p2pmsg demo $(ARGS)

test: setup area lint types ## run the checks and the tests (4 to 6 minutes on two cores); ONLY=area
	$(PYTEST) $(PYTEST_ARGS)

# These compute more, and wait less.
test-long: WORKERS := $(shell echo $$(( ($(CORES_HERE) < 2 ? 2 : $(CORES_HERE) > 4 ? 4 : $(CORES_HERE)) + 1 )))
test-long: setup area ## run rounds of kills, thousands of seeds and soaks; says how long it takes
	@began=$$(date +%s); $(PYTEST) --long $(PYTEST_ARGS); status=$$?; \
	took=$$(( $$(date +%s) - began )); \
	echo "test-long: took $$(( took / 60 )) min $$(( took % 60 )) s"; exit $$status

# A mistyped area is reported at once, and not after the checks.
area: setup
	@$(if $(ONLY),$(BIN)/python -m tests.areas $(ONLY))

# Interpreters that are there and start; PYTHONS=… names others.
PYTHONS := $(wildcard $(HOME)/.pyenv/versions/3.1[1-9].*/bin/python) python3.11 python3.12 python3.13 python3.14
PACKED := build/dist

test-pythons: setup ## sdist and wheel, built and run under each Python that is found; PYTHONS=…
	@rm -rf $(PACKED) && $(BIN)/python -m hatchling build -t sdist -d $(PACKED) >/dev/null
	@wheel() { P2PMSG_NATIVE=0 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --retries 1 --timeout 15 \
		--no-deps --wheel-dir $(PACKED) "$$@" $(PACKED)/*.tar.gz; }; \
	wheel 2>/dev/null || { echo "test-pythons: no clean build environment to be had; built in $(VENV)" >&2; \
		wheel --no-build-isolation; }
	@for python in $(PYTHONS); do \
		of=$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue; \
		at=$(VENV)/other/$$of; \
		case "$$found $$tried " in *"/$$of/"*) continue ;; esac; \
		tried="$$tried /$$of/"; \
		if rm -rf "$$at" && "$$python" -m venv "$$at" && \
			"$$at/bin/python" -m pip install --quiet --disable-pip-version-check \
				--retries 1 --timeout 15 $(PACKED)/*.whl; \
		then found="$$found $$PWD/$$at/bin/python"; \
		else echo "test-pythons: left out, Python $$of: the wheel could not be installed" >&2; fi; \
	done; \
	[ -n "$$found" ] || { echo "test-pythons: skipped, no Python can be used" >&2; exit 0; }; \
	P2PMSG_PYTHONS="$$found" $(BIN)/pytest -n $(WORKERS) tests/integration/test_exit.py \
		tests/integration/test_packaging.py $(PYTEST_ARGS)

# A copy of .venv's packages, as links, with msgspec left out.
CODEC_VENV := $(VENV)/other/codec
SITE := import site; print(site.getsitepackages()[0])
CODEC_TESTS := unit/p2pmsg/codec unit/p2pmsg/test_wire.py property/test_codec.py property/test_single.py \
	integration/test_protocol.py integration/test_typed.py integration/test_pubsub.py \
	integration/test_without_msgspec.py

test-codec: setup ## the codec's tests, and real peers, in an environment without msgspec
	@rm -rf $(CODEC_VENV) && $(BIN)/python -m venv --without-pip $(CODEC_VENV)
	@into=$$($(CODEC_VENV)/bin/python -c '$(SITE)'); for each in "$$($(BIN)/python -c '$(SITE)')"/*; do \
		case "$$each" in */msgspec*) ;; *) ln -s "$$each" "$$into" ;; esac; done
	@! $(CODEC_VENV)/bin/python -c 'import msgspec' 2>/dev/null || \
		{ echo "test-codec: msgspec can be imported all the same" >&2; exit 1; }
	$(CODEC_VENV)/bin/python -m pytest -n $(WORKERS) $(CODEC_TESTS:%=tests/%) $(PYTEST_ARGS)

# The core's: frames, the way of a message, and StatsD.
TWIN_TESTS := unit/p2pmsg/subscriber unit/p2pmsg/publisher unit/p2pmsg/test_wire.py property/test_single.py \
	property/statsd integration/test_protocol.py integration/test_typed.py integration/test_pubsub.py

test-twin: setup ## the core's tests with the hot functions in Python, where `make test` had them compiled
	P2PMSG_NATIVE=0 $(BIN)/pytest -n $(WORKERS) $(TWIN_TESTS:%=tests/%) $(PYTEST_ARGS)

check: lint types ## lint, words, types, import contracts

lint: setup
	$(BIN)/ruff check .
	$(BIN)/python -m tests.words

types: setup
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup $(BENCH_STAMP) ## measure against the peers; ONLY=area, JSON=file
	@$(BIN)/python -m tests.bench $(if $(ONLY),--only=$(ONLY)) $(if $(JSON),--json $(JSON)) \
		$(if $(RUNS),--runs $(RUNS)) $(if $(QUICK),--quick) $(if $(CORES),--cores $(CORES))

$(DOCS_STAMP): pyproject.toml $(DEV_STAMP)
	@$(PIP_INSTALL) --editable '.[docs]' && touch $@

docs: setup $(DOCS_STAMP) ## build the guide and the reference: build/docs/index.html
	@$(BIN)/sphinx-build --quiet --fail-on-warning -d build/doctrees docs build/docs && \
		echo build/docs/index.html

pictures: setup $(DOCS_STAMP) ## draw the README's and the guide's pictures again
	@$(BIN)/python docs/pictures.py

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) p2pmsg/native/*.so build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name '*.egg-info' -type d -prune -exec rm -rf {} +
