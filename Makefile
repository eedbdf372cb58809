# `make` lists what there is. All of it runs in .venv, made on first use from pyproject.toml and constraints.txt.
PYTHON ?= python3
VENV ?= .venv
PY ?= $(VENV)/bin/python
PIP_ARGS ?= -c constraints.txt
ARGS ?=
# One stamp for the environment: made again when the dependencies change. With another PY nothing is installed.
STAMP := $(VENV)/.installed
READY := $(if $(filter $(VENV)/bin/python,$(PY)),$(STAMP))

.DEFAULT_GOAL := help
.PHONY: help install train test test-fast lint typecheck format golden clean data pretrain evaluate doctor sweep compare docs study bench bench-quick

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'
	@echo "  ARGS=\"...\" is passed on: make train ARGS=\"kl=fixed grpo.kl_type=symmetric\""

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' $(PIP_ARGS)
	@touch $@

install: $(READY) ## make .venv and install rookexp with its development tools

train: $(READY) ## train by GRPO: python -m rookexp.train $(ARGS)
	$(PY) -m rookexp.train $(ARGS)

doctor: $(READY) ## check a run before it starts: python -m rookexp.doctor $(ARGS)
	$(PY) -m rookexp.doctor $(ARGS)

sweep: $(READY) ## many runs and their comparison: python -m rookexp.train -m $(ARGS)
	$(PY) -m rookexp.train -m $(or $(ARGS),sweep=nano_lr_beta_entropy)

compare: $(READY) ## runs or sweeps side by side: python -m rookexp.compare $(ARGS)
	$(PY) -m rookexp.compare $(ARGS)

evaluate: $(READY) ## evaluate a model: python -m rookexp.evaluate $(ARGS)
	$(PY) -m rookexp.evaluate $(ARGS)

data: $(READY) ## make the corpus: python -m rookexp.data $(ARGS)
	$(PY) -m rookexp.data $(ARGS)

pretrain: $(READY) ## train the small model from scratch: python -m rookexp.pretrain $(ARGS)
	$(PY) -m rookexp.pretrain $(ARGS)

test: $(READY) ## every test, files side by side on at most four cores
	$(PY) -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

test-fast: $(READY) ## the tests that take no more than a few seconds
	$(PY) -m pytest -m "not slow" $(ARGS)

lint: $(READY) ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: $(READY) ## ruff: mend what it can
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

typecheck: $(READY) ## mypy
	$(PY) -m mypy

golden: $(READY) ## rewrite tests/golden, the recorded results; read the difference before you commit it
	$(PY) -m pytest -q --golden -k golden

docs: $(READY) ## rewrite docs/presets.md, what each recipe of conf/experiment sets
	$(PY) docs/presets.py

study: $(READY) ## the comparison in docs/algorithms.md: three hours of training (ARGS="--jobs 2": half of it), then docs/study.png and docs/study.md
	$(PY) docs/study.py $(ARGS)

bench: $(READY) ## our step against TRL's, three sizes, for hours: python -m rookexp.bench $(ARGS)
	$(PY) -m rookexp.bench $(ARGS)

bench-quick: $(READY) ## the smallest size of it, against TRL's fastest setting, in under three minutes
	$(PY) -m rookexp.bench sizes=[1m] parts=[step,decode] against=[trl_fastest] repeats=3 $(ARGS)

clean: ## remove caches and builds; runs and .venv stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find rookexp tests -name __pycache__ -type d -prune -exec rm -rf {} +
