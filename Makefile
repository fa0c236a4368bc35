# Needs Python >= 3.11, make and git. Everything runs in .venv, whatever environment is active.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
ROOT := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
BIN := $(ROOT)/.venv/bin
# An outer environment must not leak in: its packages, its pip settings, its site directories.
CLEAN := env -u PYTHONPATH -u PYTHONHOME -u VIRTUAL_ENV -u PIP_USER -u PIP_TARGET -u PIP_PREFIX \
  PYTHONNOUSERSITE=1 PATH="$(BIN):$$PATH"
# The oldest that works, asked first by name, since `python3` may be another.
FIND_PYTHON = for name in $${PYTHON:-python3 python3.13 python3.12 python3.11}; do \
  "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v "$$name" && exit; \
  done; echo "error: Python >= 3.11 is needed; set PYTHON=/path/to/python" >&2; exit 1

.PHONY: setup repro test lint bench check lock clean
.DEFAULT_GOAL := repro

# .done holds the hash of the lock that is installed: a checkout that only touches the file installs nothing.
setup:
	@cd "$(ROOT)"; lock="$$(git hash-object --no-filters requirements.lock)"; \
	[ "$$(cat .venv/.done 2>/dev/null)" != "$$lock" ] || exit 0; \
	[ ! -L .venv ] || { echo "error: .venv is a link to another environment; remove the link" >&2; exit 1; }; \
	python="$$($(FIND_PYTHON))"; echo "installing into .venv (once, some minutes)"; \
	$(CLEAN) "$$python" -m venv --clear .venv; \
	$(CLEAN) "$(BIN)/python" -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r requirements.lock; \
	echo "$$lock" > .venv/.done

# compose first: DVC can't see an edit of a prompt file outside the repository, compose compares its pin.
repro: setup
	@cd "$(ROOT)"; $(CLEAN) python -m pipeline compose; $(CLEAN) dvc repro
	@cat "$(ROOT)/build/report/summary.txt"

test: setup
	@cd "$(ROOT)"; $(CLEAN) python -m pytest $(ARGS)

lint: setup
	@cd "$(ROOT)"; $(CLEAN) ruff check .; $(CLEAN) ruff format --check .; $(CLEAN) mypy; $(CLEAN) lint-imports

# What CI runs.
check: lint test

bench: setup
	@cd "$(ROOT)"; for file in tests/bench/bench_*.py; do $(CLEAN) PYTHONPATH=. python "$$file"; done

# One of them: bench-generate, bench-reconstruct, bench-build, bench-chaos.
bench-%: setup
	@cd "$(ROOT)"; $(CLEAN) PYTHONPATH=. python "tests/bench/bench_$*.py" $(ARGS)

# Needs uv. No index addresses: a lock says what, not from where.
lock:
	@cd "$(ROOT)"; uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
	  --group dev pyproject.toml -o requirements.lock

clean:
	@cd "$(ROOT)"; rm -rf .venv build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
