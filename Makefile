# Every target sets itself up; see scripts/bootstrap.
.PHONY: help demo test test-all test-vllm test-verifiers check bench clean

help:
	@echo 'make demo      train the hockey demo for a minute and a half'
	@echo 'make test      the tests, without those that train for minutes or take seconds'
	@echo 'make test-all  the tests, with those'
	@echo 'make test-vllm VLLM=VENV   those against real vLLM (scripts/vllm-venv makes the VENV, 3.4 GB)'
	@echo 'make test-verifiers VERIFIERS="VENV..."   those against real verifiers (scripts/verifiers-venv makes a VENV, 0.7 GB)'
	@echo 'make check     ruff, mypy, import-linter, deptry, tests/lint'
	@echo 'make bench     our speed beside the installed peers'
	@echo 'make clean     remove caches and build output, keep .venv and runs'

demo:
	@scripts/bootstrap
	.venv/bin/headrace train hockey-demo

test:
	@scripts/test

test-all:
	@scripts/test --all $(ARGS)

test-vllm:
	@scripts/test-vllm $(VLLM) $(ARGS)

test-verifiers:
	@scripts/test-verifiers $(VERIFIERS) -- $(ARGS)

check:
	@scripts/check

bench:
	@scripts/bench

clean:
	rm -rf dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
