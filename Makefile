# Reserved for later: test-versions, contract VERSION=x.y.z.
# Tests run in as many processes as there are cores, up to 4, a file in one of them: engines are shared within it.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint bench clean
MAKEFLAGS += --no-print-directory

help:       ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup:      ## make .venv for a CPU, or bring it up to date; PYTHON=python3.12 picks the Python
	@bash deploy/setup/setup.sh

demo: setup ## compare drafting with no drafting on a small real model: reports/demo.json and reports/demo.html
	@.venv/bin/specplug demo

test: setup ## the tests that pass in minutes
	@.venv/bin/pytest -n auto --maxprocesses 4 --dist loadfile

test-slow: setup ## the tests marked slow
	@.venv/bin/pytest -m slow

lint: setup ## ruff, its formatter, mypy
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy

bench:      ## against vLLM's own drafters and arctic-inference, which is compiled the first time
	@bash deploy/setup/setup.sh bench
	@.venv/bin/python benchmarks/peers.py

clean:      ## remove caches, builds and reports; .venv stays
	@rm -rf build dist reports *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path ./.venv -prune -o -type d -name __pycache__ -exec rm -rf {} +
