# Tests run in as many processes as there are cores, up to 4, a file in one of them: engines are shared within it.
# Those of tests/deploy kill processes and look at the clock: alone, one after the other.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-versions contract lint bench clean
MAKEFLAGS += --no-print-directory

help:       ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:      ## make .venv for a CPU, or bring it up to date; PYTHON=python3.12 picks the Python
	@bash deploy/setup/setup.sh

demo: setup ## compare drafting with no drafting on a small real model: reports/demo.json and reports/demo.html
	@.venv/bin/specplug demo

test: setup ## the tests that pass in minutes
	@.venv/bin/pytest -n auto --maxprocesses 4 --dist loadfile tests/unit tests/contract tests/engine
	@.venv/bin/pytest tests/deploy

test-slow: setup ## the tests marked slow
	@.venv/bin/pytest -m slow

# With what each of them differs in from the environment of `make setup`. One after the other: 4 GB of disk each.
VERSIONS = $(patsubst deploy/setup/versions/%.lock,%,$(wildcard deploy/setup/versions/*.lock))

test-versions: ## engine tests on other vLLMs, each in an environment of its own; VERSION=0.31.0 picks one
	@for version in $(or $(VERSION),$(VERSIONS)); do \
	    bash deploy/setup/setup.sh version $$version || exit; \
	    SPECPLUG_ALLOW_ANY_VLLM=1 .venv-$$version/bin/pytest @tests/contract/engine-tests.txt || exit; \
	done

contract: setup ## what we rely on, looked up in the sources of a vLLM that is not installed; VERSION=0.33.0
	@.venv/bin/specplug doctor --release $(or $(VERSION),0.33.0)

lint: setup ## ruff, its formatter, mypy
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy

bench:      ## against vLLM's own drafters and arctic-inference, which is compiled the first time
	@bash deploy/setup/setup.sh bench
	@.venv/bin/python benchmarks/peers.py

clean:      ## remove caches, builds and reports; .venv stays
	@rm -rf build dist reports *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path './.venv*' -prune -o -type d -name __pycache__ -exec rm -rf {} +
