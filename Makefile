# `make quickstart` shows it, `make check` is for while you work, `make test` is what CI runs. Each makes .venv first; the
# second time that costs nothing.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
.PHONY: quickstart demo test check lint proof docs clean distclean

VENV := .venv
STAMP := $(VENV)/.installed
# Present from the first byte of an installation to its last: with it and no stamp, .venv is half-finished.
UNFINISHED := $(VENV)/.installing

# Run for real: a pyenv shim can be on the PATH and still not run, and Debian's python3 may lack ensurepip.
USABLE := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do \
	if $$p -c '$(USABLE)' >/dev/null 2>&1; then command -v $$p; break; fi; done)

# The tests start several processes each; on a small machine more threads a process only get in each other's way.
THREADS ?= 1
# Compiled modules are kept, whatever the environment says: compiling them is a tenth of the start of each process.
RUN := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=$(THREADS)
PYTEST_ARGS ?=

quickstart: $(STAMP)
	$(VENV)/bin/radioplat quickstart

# Forty kills, four students, one hash: docs/how_to/demo.md. DEMO="--kills 6 --seconds 60 --students 2" for a short one.
DEMO ?=
demo: $(STAMP)
	$(RUN) $(VENV)/bin/radioplat demo $(DEMO)

# Two lanes: the tests marked `ray`, one after another, for a run joins the cluster that it finds on the machine; and all
# others, file by file in two processes, end-to-end tests first. Three processes keep two cores busy while Ray waits.
# The files that share a cluster go first, in a process that holds little address space yet: the kernel may refuse the
# fork with which Ray starts a cluster to one that holds much. What failed is printed last.
test: $(STAMP)
	failed=$$(mktemp)
	trap 'kill %1 2>/dev/null || true; rm -f $$failed' EXIT
	# Lint needs one core; meanwhile the tests are compiled with their assertions, which both processes below would do.
	$(RUN) $(VENV)/bin/python -m pytest --collect-only -q >/dev/null 2>&1 &
	$(MAKE) --no-print-directory lint
	wait
	lane() {
		local output code=0
		output=$$($(RUN) $(VENV)/bin/python -m pytest "$$@" $(PYTEST_ARGS) 2>&1) || code=$$?
		printf '%s\n' "$$output"
		[[ $$code == 0 || $$code == 5 ]] || printf '%s\n' "$$output" >> $$failed
	}
	with_ray=$$(grep -rl --include='test_*.py' 'mark\.ray\b' tests | sort)
	shared=$$(grep -l 'ray_cluster' $$with_ray)
	{
		lane -m 'ray and not proof' $$shared
		lane -m 'ray and not proof' $$(grep -vxF "$$shared" <<< "$$with_ray")
	} &
	others=$$(ls -d tests/*/ tests/test_*.py | grep -vE '/(end_to_end|helpers|__pycache__)/')  # pytest sorts overlapping paths
	$(RUN) $(VENV)/bin/python -m pytest -m 'not ray and not proof' -n 2 --dist loadfile --no-loadscope-reorder \
		--max-worker-restart=0 \
		tests/end_to_end $$others $(PYTEST_ARGS) || echo "The tests without Ray failed: see above." >> $$failed
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

# Long measurements and chaos tests, marked `proof`: a line for each, logs in proofs/; PROOFS="--list" lists them.
PROOFS ?=
proof: $(STAMP)
	$(RUN) $(VENV)/bin/python tests/proofs.py $(PROOFS)

# The documentation site, in build/site; without the network.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	echo "The site: build/site/index.html; its search needs a server: python3 -m http.server -d build/site"

$(STAMP): pyproject.toml constraints.txt
	@python="$(PYTHON)"
	if [[ -z "$$python" ]] || ! "$$python" -c '$(USABLE)'; then
		echo "No usable Python 3.11 to 3.13 (with ensurepip)$${python:+ at $$python}." >&2
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
	rm -rf build dist proofs ./*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV)
