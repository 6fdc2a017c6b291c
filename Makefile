# Every target does its own set-up, once: a machine with Python 3.11+, pip, make and a package index
# is enough. What is set up already is left alone, so all of it works again without a network.

PYTHON ?= python3

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
INSTALL := $(PIP) install --no-user --constraint constraints.txt
DEMO := models/SmolLM2-135M-Instruct.Q4_1.gguf

# Another model is taken as it is; only the demo model is ours to fetch.
override MODEL := $(or $(MODEL),$(DEMO))
NEEDED := $(if $(filter $(DEMO),$(MODEL)),$(DEMO))
export MODEL

# On make's command line only: many shells have a HOST of their own. Without them, config.toml and
# RUSHLIGHT_SERVER__HOST and __PORT count.
LISTEN := $(if $(filter command line,$(origin HOST)),--host "$$HOST") \
  $(if $(filter command line,$(origin PORT)),--port "$$PORT")

.PHONY: help run test aarch64 check format bench clean
.DEFAULT_GOAL := help

help: ## Show this list
	@sed -n 's/^\([a-z0-9]*\):.*## /  make \1  /p' $(MAKEFILE_LIST) | \
	  awk '{printf "  %s %-7s", $$1, $$2; $$1 = $$2 = ""; print $$0}'
	@echo "Variables: MODEL=file.gguf PYTHON=$(PYTHON)"

run: $(VENV)/run.stamp $(NEEDED) ## Serve the demo model, or MODEL=file.gguf; HOST=... PORT=... after make
	@exec $(PY) -m clients serve "$$MODEL" $(LISTEN)

test: $(VENV)/dev.stamp $(VENV)/frameworks.stamp $(DEMO) ## Run every test, slow ones and those with a real model included
	$(PY) -m pytest

aarch64: $(VENV)/run.stamp ## Run tests of the kernels on an emulated Arm CPU; needs Debian's or Ubuntu's apt
	@PYTHON=$(PY) tests/aarch64.sh

check: $(VENV)/dev.stamp ## Lint, formatting and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(VENV)/dev.stamp ## Format the code and mend what lint can mend
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(VENV)/run.stamp $(NEEDED) ## Measure the engine on the demo model, or MODEL=file.gguf
	@exec $(PY) -m clients bench "$$MODEL"

clean: ## Remove everything that make has set up, models excepted
	rm -rf $(VENV) .aarch64 build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# A stamp is written last: a set-up that was interrupted is done again.
$(VENV)/venv.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'Rushlight needs Python 3.11 or later, and "$(PYTHON)" is not that: set it, for example make PYTHON=python3.12 ...' >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo '"$(PYTHON)" cannot make virtual environments: install its venv package (Debian, Ubuntu: apt install python3-venv)' >&2; \
	  exit 1; }
	@echo 'Creating a virtual environment in $(VENV) ...'
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# The build backend comes first and from the pinned list, so that no later build looks for one.
$(VENV)/run.stamp: $(VENV)/venv.stamp pyproject.toml constraints.txt
	@echo 'Installing the packages that Rushlight needs ...'
	@$(INSTALL) setuptools
	@$(INSTALL) --no-build-isolation --editable .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	@echo 'Installing the packages for development and tests ...'
	@$(INSTALL) --no-build-isolation --editable '.[dev]'
	@touch $@

# One test's, which is skipped where they cannot be had; where CI is set it is not.
$(VENV)/frameworks.stamp: $(VENV)/run.stamp tests/served/frameworks.txt
	@echo 'Installing LangChain and LlamaIndex, for one test, apart from the rest ...'
	@rm -rf $(VENV)/frameworks
	@if $(PY) -m venv --without-pip $(VENV)/frameworks && $(PIP) --quiet \
	  --python $(VENV)/frameworks install --no-user --no-deps --no-compile -r tests/served/frameworks.txt; \
	then touch $@; else rm -rf $(VENV)/frameworks; test -z "$$CI"; fi

$(DEMO): | $(VENV)/run.stamp
	@echo 'Downloading the demo model (98 MB) ...'
	@$(PY) -m clients fetch
