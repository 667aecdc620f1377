# Every job of the course is one target; `make` alone lists them.
#
#   make book TORCH_INDEX=URL   also look for torch at this wheel index (a CPU build is smaller)
#   make book PYTHON=python3.13 use this Python to create .venv

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
TORCH_INDEX ?=
SITE := _build/html
# nbgrader calls `alembic` by name.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export JUPYTER_PLATFORM_DIRS := 1

.DEFAULT_GOAL := help
.PHONY: help book test lab exercises student-bundle demo-class bench fmt lint check upgrade clean

help:
	@echo "make book, then open _build/html/index.html, to read the course. All targets:"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

book: $(VENV)/.book ## execute every chapter and build the site into _build/html
	@$(BIN)/jupyter-book build --path-output . -W -n --keep-going . || { \
	  echo; echo "make book: the build failed; the first message above with WARNING or ERROR says where." >&2; \
	  exit 1; }
	@echo
	@echo "The book is built. Open it in a browser: file://$(CURDIR)/$(SITE)/index.html"

test: $(VENV)/.everything book ## every test: package, notebooks, exercises, grading, site (15 minutes)
	@$(BIN)/python tests/missing.py
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -q \
	  --nbval-lax --nbval-current-env --nbval-cell-timeout 300 tests book

check: $(VENV)/.everything ## the fast tests (2 minutes)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -q -m "not slow and not browser" tests

lab: $(VENV)/.lab ## copy the exercises into my_work/ once, open JupyterLab there
	@$(BIN)/llmcourse lab

exercises: $(VENV)/.grade ## regenerate exercises/ from solutions/
	@$(BIN)/llmcourse release

student-bundle: $(VENV)/.grade ## what learners get, packed: _build/student-bundle.zip
	@$(BIN)/llmcourse bundle

demo-class: $(VENV)/.grade ## six sample learners: released, submitted, graded, with feedback and a table
	@$(BIN)/llmcourse demo-class

bench: $(VENV)/.everything ## speed, memory, recall and training, beside public peers: tables, plots, benchmarks/results/ (three hours)
	@for script in benchmarks/*.py; do $(BIN)/python $$script || exit; done

fmt: $(VENV)/.test ## bring code and notebooks into their canonical form
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/python -m llmcourse.notebooks book solutions

lint: $(VENV)/.everything ## style, types, form of the notebooks, rules for exercises
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m llmcourse.notebooks --check book solutions exercises
	@$(BIN)/llmcourse release --check

upgrade: ## install the newest versions apart from .venv, write them to constraints.txt
	@rm -rf _build/upgrade
	@$(FIND_PYTHON); "$$python" -m venv _build/upgrade
	@_build/upgrade/bin/python -m pip install $(PIP_INDEX) -e '.[book,lab,grade,test]'
	@{ head -n 1 constraints.txt; \
	   _build/upgrade/bin/python -m pip freeze --exclude-editable | sed 's/+cpu$$//'; } > _build/constraints.txt
	@mv _build/constraints.txt constraints.txt && rm -rf _build/upgrade
	@echo "constraints.txt is rewritten; now run: make test"

clean: ## remove what was built (.venv and my_work/ stay)
	rm -rf _build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# --- The environment: one stamp file for each extra, so that a target installs what it needs.

PIP_INDEX = $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# pip's own report of what it downloads, without the hundred lines that say nothing new.
INSTALL = set -o pipefail; install() { $(BIN)/python -m pip install -c constraints.txt $(PIP_INDEX) -e "$$1" \
	  | sed -e '/already satisfied/d' -e '/^  Using cached/d' -e '/\.metadata /d' -e '/^  [A-Z].*: started$$/d' -e '/^  [A-Z].* status /d'; }; install

# Sets $python to the first good one; one clear line when there is none.
OLD_ENOUGH = import sys; sys.exit(sys.version_info < (3, 11, 5))
FIND_PYTHON = for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11) ""; do \
	  [ -z "$$python" ] && { echo "make: Python 3.11.5 or newer is needed; $(or $(PYTHON),python3) is $$($(or $(PYTHON),python3) --version 2>/dev/null || echo missing). Install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	  "$$python" -c '$(OLD_ENOUGH)' 2>/dev/null && break; \
	done

$(BIN)/python:
	@$(FIND_PYTHON); rm -rf $(VENV); "$$python" -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "make: $$python cannot create an environment; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }

$(VENV)/.book $(VENV)/.lab $(VENV)/.grade $(VENV)/.test: $(VENV)/.%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing what this needs ($*) into $(VENV): a few minutes the first time."
	@$(INSTALL) '.[$*]'
	@touch $@

$(VENV)/.everything: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing everything into $(VENV): a few minutes the first time."
	@$(INSTALL) '.[book,lab,grade,test]'
	@touch $(VENV)/.book $(VENV)/.lab $(VENV)/.grade $(VENV)/.test $@
