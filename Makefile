# Each target works alone on a fresh clone with python3 and make: it creates its own environment in .venv first.
PYTHON ?= python3
BIN := .venv/bin
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip --disable-pip-version-check install --quiet
RUN := OMP_NUM_THREADS=1
CODE := src tests $(wildcard bench examples)

.PHONY: demo test test-slow check bench bench-replay clean

demo: .venv/core  ## train IMPALA on CartPole-v1 until it is solved
	$(BIN)/shoal train impala --env CartPole-v1 --stop-return 475

test: .venv/dev  ## the quick tests
	$(RUN) $(BIN)/python -m pytest

test-slow: .venv/dev  ## long learning, chaos and endurance tests
	$(RUN) $(BIN)/python -m pytest -m slow

check: .venv/dev  ## format, lint, types, import directions
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(RUN) $(BIN)/python -m pytest tests/unit/test_imports.py

bench: .venv/core  ## steps per second, the median of five runs
	$(BIN)/shoal bench throughput impala --env CartPole-v1 --seconds 10 --repeat 5

bench-replay: .venv/core  ## the replay service beside Reverb and cpprb
	$(BIN)/python -m bench.replay.compare

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache

.venv/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --editable '.[plot]'
	touch $@

.venv/dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --editable '.[dev]'
	touch .venv/core $@
