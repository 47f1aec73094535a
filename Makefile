# `make quickstart` shows it, `make check` is for while you work, `make test` is what CI runs. Each makes .venv first; the
# second time that costs nothing.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.PHONY: quickstart test check lint proof clean distclean

VENV := .venv
STAMP := $(VENV)/.installed
# Present from the first byte of an installation to its last: with it and no stamp, .venv is half-finished.
UNFINISHED := $(VENV)/.installing

# Run for real: a pyenv shim can be on the PATH and still not run, and Debian's python3 may lack ensurepip.
USABLE := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
PYTHON ?= $(shell for p in python3.12 python3.11 python3; do \
	if $$p -c '$(USABLE)' >/dev/null 2>&1; then command -v $$p; break; fi; done)

# The tests start several processes each; on a small machine more threads a process only get in each other's way.
THREADS ?= 1
RUN := OMP_NUM_THREADS=$(THREADS)
PYTEST_ARGS ?=

quickstart: $(STAMP)
	$(VENV)/bin/radioplat quickstart

# The unit tests run in two processes, file by file. The files that start Ray run one after another, for a run joins the
# cluster that it finds on the machine, and each in a process of its own: one that has done other work holds so much
# address space that the kernel refuses the fork with which Ray starts a cluster. Beside them run the other end-to-end
# files. Each prints when it has ended, and what failed is printed last.
STARTS_RAY := grep -rlE --include='test_*.py' 'ray_environment|ray\.init\('
test: lint
	failed=$$(mktemp)
	trap 'kill %1 2>/dev/null || true; rm -f $$failed' EXIT
	alone() {
		local said code=0
		said=$$($(RUN) $(VENV)/bin/python -m pytest "$$@" $(PYTEST_ARGS) 2>&1) || code=$$?
		printf '%s\n' "$$said"
		[[ $$code == 0 || $$code == 5 ]] || printf '%s\n' "$$said" >> $$failed  # 5: all of it is proof
	}
	with_ray=$$($(STARTS_RAY) tests | sort)
	others=$$(ls tests/end_to_end/test_*.py | grep -vxF "$$with_ray")
	$(RUN) $(VENV)/bin/python -m pytest -n 2 --dist loadfile --ignore=tests/end_to_end $${with_ray//tests\//--ignore=tests/} $(PYTEST_ARGS)
	for file in $$with_ray; do alone $$file; done &
	alone $$others
	wait
	cat $$failed
	[[ ! -s $$failed ]]

# While you work: lint, and the unit tests of what differs from main (SINCE=HEAD~1: from another commit).
SINCE ?=
check: lint
	tests=$$($(VENV)/bin/python tests/changed.py $(SINCE))
	[[ -z "$$tests" ]] || $(RUN) $(VENV)/bin/python -m pytest -n 2 --dist loadfile $$tests $(PYTEST_ARGS)

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/mypy

# Long measurements and chaos tests, marked `proof`: each file in a process of its own, as above.
proof: $(STAMP)
	for file in $$(grep -rl --include='test_*.py' 'mark.proof' tests | sort); do
		$(RUN) $(VENV)/bin/python -m pytest -m proof $$file $(PYTEST_ARGS)
	done

$(STAMP): pyproject.toml constraints.txt
	@python="$(PYTHON)"
	if [[ -z "$$python" ]] || ! "$$python" -c '$(USABLE)'; then
		echo "No usable Python 3.11 or 3.12 (with ensurepip)$${python:+ at $$python}." >&2
		echo "Install one (on Debian also python3-venv), or name it: make PYTHON=/path/to/python3.12" >&2
		exit 1
	fi
	if [[ -e $(UNFINISHED) && ! -e $(STAMP) ]] || ! $(VENV)/bin/python -m pip --version >/dev/null 2>&1; then
		echo "Making $(VENV) with $$python"
		"$$python" -m venv --clear $(VENV)
	fi
	touch $(UNFINISHED)
	$(VENV)/bin/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[engine,quickstart,test]'
	rm -f $(UNFINISHED)
	touch $@

clean:
	rm -rf build dist ./*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
