# `make test` and `make demo` need nothing but Python 3.11 or later: each builds its own environment
# in .venv the first time, and again only when pyproject.toml or constraints.txt has changed.

PYTHON ?= python3
ARGS ?=

VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.PHONY: help test thorough oracles demo docs lint format bench clean
.DEFAULT_GOAL := help

help:
	@echo "make test     run the tests             (ARGS=\"-k causal\" goes to pytest)"
	@echo "make thorough the dearer rest of the tests, some minutes more"
	@echo "make oracles  compare with other people's implementations, and run transformers' own tests of models"
	@echo "make demo     train a small cosFormer beside softmax, compare, write a page (five minutes)"
	@echo "make docs     build the documentation, in build/site"
	@echo "make lint     ruff, format check, mypy"
	@echo "make format   rewrite the sources as the linter wants them"
	@echo "make bench    time the operator, write a report   (ARGS=\"--help\" for its options)"
	@echo "make clean    remove .venv, caches and build outputs"
	@echo
	@echo "PYTHON=/path/to/python chooses the interpreter for .venv (3.11 or later; default: python3)."

test: $(STAMP)
	$(RUN) -m pytest $(ARGS)

thorough: $(STAMP)
	$(RUN) -m pytest -m "thorough and not oracle" $(ARGS)

oracles: $(STAMP)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[oracles]"
	$(RUN) -m tests.models.mixins.fetch
	$(RUN) -m pytest -m oracle $(ARGS)

demo: $(STAMP)
	$(RUN) -m cosformer demo $(ARGS)

docs: $(STAMP)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict $(ARGS)

bench: $(STAMP)
	$(RUN) -m benchmarks.attention_operator $(ARGS)

lint: $(STAMP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: $(STAMP)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

# The stamp is removed before anything is touched and written after everything has succeeded: without
# it, the next run starts from an empty environment.
$(STAMP): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null 2>&1 || { \
	    echo "No Python found as '$(PYTHON)'. Install Python 3.11 or later, or name one: make PYTHON=/path/to/python"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "'$(PYTHON)' is $$("$(PYTHON)" --version 2>&1), and 3.11 or later is needed. Name another one: make PYTHON=/path/to/python"; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "'$(PYTHON)' cannot make virtual environments: its venv module is missing. Install it (on Debian and Ubuntu: apt install python3-venv)."; exit 1; }
	@if [ -e $(STAMP) ]; then \
	    echo "pyproject.toml or constraints.txt has changed: bringing $(VENV) up to date ..."; rm $(STAMP); \
	else \
	    echo "Setting up $(VENV) with PyTorch and the tools (once; PyTorch is large, this can take some minutes) ..."; \
	    "$(PYTHON)" -m venv --clear $(VENV); \
	fi
	@$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks recipes -name __pycache__ -type d -prune -exec rm -rf {} +
