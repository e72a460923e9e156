# Each target works alone on a fresh clone with python3 and make: it creates its own environment in .venv first.
PYTHON ?= python3
BIN := .venv/bin
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip --disable-pip-version-check install --quiet
RUN := OMP_NUM_THREADS=1
PYTEST := $(RUN) $(BIN)/python -m pytest
ALL := -m 'slow or not slow'
CODE := src tests $(wildcard bench examples)

.PHONY: demo test test-slow test-learning test-chaos test-cluster check bench bench-replay bench-peers clean

demo: .venv/core  ## train IMPALA on CartPole-v1 until it is solved
	$(BIN)/shoal train impala --env CartPole-v1 --stop-return 475

test: .venv/dev  ## the quick tests: units and bad input, then what starts whole programs, two files at a time
	$(PYTEST) tests/unit tests/hunt -n 2
	$(PYTEST) tests/contract tests/chaos tests/learning -n 2 --dist loadfile

test-slow: .venv/dev  ## what the quick tests leave out: long learning, chaos, endurance, every program on Ray
	$(PYTEST) -m slow

test-learning: .venv/dev  ## every algorithm reaches its returns, over seeds: hours, on a machine with nothing else to do
	$(PYTEST) tests/learning $(ALL)

test-chaos: .venv/dev  ## deaths, faults, leaks and endurance
	$(PYTEST) tests/chaos $(ALL)

test-cluster: .venv/dev  ## everything that runs on Ray
	$(PYTEST) -m ray

check: .venv/dev  ## format, lint, types, import directions
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(PYTEST) tests/unit/test_imports.py tests/unit/test_architecture.py

bench: .venv/core  ## steps per second, the median of five runs
	$(BIN)/shoal bench throughput impala --env CartPole-v1 --seconds 10 --repeat 5

bench-replay: .venv/core  ## the replay service beside Reverb and cpprb
	$(BIN)/python -m bench.replay.compare

bench-peers: .venv/dev  ## Shoal beside RLlib, Sample Factory, SB3 and PPO in one file: more than an hour
	$(BIN)/python -m bench.peers

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
