# SpeeDO. `make` alone says what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# Set on the command line or in the environment; scripts/setup.sh says what each does.
export PYTHON TORCH SPEEDO_CAFFE_PYTHONPATH SPEEDO_CAFFE_SOURCE SPEEDO_CAFFE_MIRROR SPEEDO_CACHE

BIN := .venv/bin
# For example: make test ARGS='-k easgd -x', make demo ARGS='--mode easgd'
ARGS ?=

# Where `make wheels` puts what other hosts install
DIST ?= dist

.PHONY: help setup develop test check format demo bench faults wheels images lock schema clean distclean

help: ## this list
	@echo 'SpeeDO trains one Caffe model with many workers. First time here: make demo'
	@echo
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 18
	@echo
	@echo "Settings for setup: PYTHON, TORCH, SPEEDO_CAFFE_PYTHONPATH, SPEEDO_CAFFE_SOURCE, SPEEDO_CAFFE_MIRROR, SPEEDO_CACHE"
	@echo "(scripts/setup.sh says what each does). ARGS='...' is handed on by test, demo, bench and faults."

setup: ## install what is missing to train: Debian packages, .venv, pycaffe (built once, some minutes), speedo; TORCH=1: PyTorch too
	@scripts/setup.sh

develop: ## the same, and what tests and checks need: a browser, linters, the oldest Ray
	@scripts/setup.sh develop

test: develop ## every test, with real Redis, Ray and Caffe
	$(BIN)/python -m pytest -n $$(( $$(nproc) < 2 ? 2 : 4 )) --dist worksteal --durations=10 $(ARGS)

check: develop ## the fast loop, in a minute: format, lint, types, and the quick tests without servers, processes, Caffe and PyTorch
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache >/dev/null || $(BIN)/lint-imports
	SPEEDO_QUICK=1 $(BIN)/python -m pytest -q -n 3 --dist worksteal -m 'not (redis or ray or caffe or torch or processes or slow)' $(ARGS)

format: develop ## let ruff format the code and mend what it can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

demo: setup ## train LeNet on Fashion-MNIST with two workers, one epoch, and say where the model is
	$(BIN)/speedo train --mode sync --workers 2 --max-iter 938 $(ARGS)

bench: develop ## measure throughput of every mode against free-running Caffe
	$(BIN)/python -m bench $(ARGS)

faults: develop ## every row of the fault matrix in every mode, and other matrices; the table goes into docs/reliability.md
	@mkdir -p build && rm -f build/faults.jsonl
	@status=0; \
	SPEEDO_FAULTS=all SPEEDO_FAULTS_REPORT=build/faults.jsonl \
		$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'faults or matrix' $(ARGS) || status=$$?; \
	SPEEDO_SIMULATIONS=2064 SPEEDO_TAKEOVERS=1000 SPEEDO_PARTITIONS=2000 SPEEDO_SLOW_STORES=2000 $(BIN)/python -m pytest -q -n 2 --dist worksteal tests/study/simulation/test_fuzz.py tests/study/simulation/test_takeovers.py tests/study/simulation/test_partitions.py tests/study/simulation/test_slow_stores.py || status=$$?; \
	$(BIN)/python -m tests.faults.report docs/reliability.md build/faults.jsonl; exit $$status

wheels: setup ## build wheels of speedo and pycaffe into dist/, for hosts without a checkout
	@scripts/wheels.sh "$(DIST)"

images: ## as root: build the container image and train with a master and three workers in containers
	@scripts/images.sh

lock: ## write the lock files anew from pyproject.toml (ARGS=--upgrade: with the newest of everything)
	scripts/lock.sh $(ARGS)

schema: ## generate caffe_pb2.py of packages/caffe-nets from its caffe.proto (Debian's protobuf-compiler)
	protoc --proto_path=packages/caffe-nets --python_out=packages/caffe-nets caffenets/caffe_schema/caffe.proto

clean: ## remove what builds, tests and tools left here; keep .venv and the cached wheel
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv too; the cached wheel and source stay in ~/.cache/speedo
	rm -rf .venv
