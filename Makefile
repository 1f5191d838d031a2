# Everything a person or a CI job does with this checkout. `make` alone lists it.
PYTHON ?= /usr/bin/python3
BIN := .venv/bin
PYTEST_ARGS ?=
BENCH_ARGS ?=
# Where `make test` leaves pytest's exit status, for those who cannot do with make's own.
STATUS_FILE ?=
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help setup demo test check rooms fix lock reference docs wheel release bench bench-quick clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install what is missing: Debian packages (with sudo, where not root) and .venv
	@tools/setup.sh

demo: setup ## from a fresh machine to a verdict: boot guests, measure RAID 5, compare with what was published
	@$(BIN)/lab run scenario raid5-parity-last --clock virtual --trials auto
	@$(BIN)/lab up scenario raid5-parity-last --no-run

# No caches (pytest's, Hypothesis' examples): what an earlier run found may not decide this one.
# Two processes; tests that measure on the host's clock come last (tests/distribution.py). PYTEST_ARGS='-n 0': one process.
test: setup ## run all tests, real guests too, but the slow ones (PYTEST_ARGS=… passes options; LAB_HOME is respected)
	@$(BIN)/python -m pytest -n 2 -p no:cacheprovider --hypothesis-profile=thorough --durations=30 --durations-min=5 -m "not slow" $(PYTEST_ARGS); status=$$?; \
	if [ -n "$(STATUS_FILE)" ]; then echo $$status >"$(STATUS_FILE)"; else exit $$status; fi

check: setup ## format, lint, types, layers and the fast tests, without guests
	@tools/check.sh $(PYTEST_ARGS)

rooms: setup ## the delete test: each folder of lab/capabilities removed, then types, layers and fast tests
	@$(BIN)/python tools/delete_test.py

fix: setup ## let ruff format and fix what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: ## pin the dependencies anew, with hashes (UPGRADE=1: to the newest versions)
	@tools/lock.sh

reference: setup ## make docs/reference and the scenarios' JSON Schema from the models, lab.1 from the help
	$(BIN)/python -m docs.make_reference

docs: reference ## build the documentation site, with search, in build/site; lab.1 is in docs/reference
	@tools/docs.sh

wheel: setup ## build dist/*.tar.gz, and from it dist/*.whl
	$(BIN)/python -m build --no-isolation

release: setup ## build dist/VERSION: wheel, sdist, source archive, notes and SHA256SUMS; the same bytes for the same commit
	@$(BIN)/python tools/release.py

# Wants a quiet machine. `make bench BENCH_ARGS=--resume` continues after a stop; `python -m bench.run --help` has more.
bench: setup ## compare the lab with hand-written QEMU, twice: 90 minutes; writes docs/benchmarks.md (BENCH_ARGS=…)
	@$(BIN)/python -m bench.run $(BENCH_ARGS)

bench-quick: setup ## the same in a quarter of an hour, with 2 of the 12 cells by hand; prints the table
	@$(BIN)/python -m bench.run --quick $(BENCH_ARGS)

clean: ## remove caches and built packages (.venv stays)
	rm -rf dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find lab tests bench -name __pycache__ -prune -exec rm -rf {} +
