# Two commands, nothing before them:   make train   and   make test
# `make help` lists the rest. Options: PYTHON=python3.12  DEVICE=gpu  MPI=system

PYTHON ?= python3
DEVICE ?= cpu
MPI ?= venv
ROLE ?= actor
WHEELS ?= cpu
WHEELHOUSE ?= wheelhouse
run := .venv/bin/python

# Open MPI refuses root unless told twice; in a container everybody is root.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
# An environment that is active in the shell is not ours.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help setup horovod train rehearse tensorboard test test-slow lint format lock wheelhouse clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

setup:  ## everything installed into .venv; quick when it is up to date
	@command -v "$(PYTHON)" >/dev/null || { echo "[set-up] there is no $(PYTHON) here: 'apt-get install python3 python3-venv', or make PYTHON=/path/to/python3.11"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 7))' || { echo "[set-up] $(PYTHON) is too old: TensorFlow 2.21 needs Python 3.11, 3.12 or 3.13: make PYTHON=/path/to/python3.11"; exit 1; }
	@"$(PYTHON)" docker/install.py --device=$(DEVICE) --mpi=$(MPI) $(again)

horovod: again := --again
horovod: setup  ## set-up again, Horovod's build included, whatever happened before

train: setup  ## the main job: the cluster of workers.csv.example, all of it here, solves CartPole
	@logdir=runs/CartPole-v1-$$(date +%Y%m%d-%H%M%S); \
	$(run) run_experiment_mm_raw.py --level_name=CartPole-v1 --batch_size=4 --max_seconds=160 \
	  --logdir=$$logdir && \
	$(run) sandbox/curve.py $$logdir

rehearse: setup  ## two learners under mpirun compare their variables (one where there is no Horovod)
	@if [ -x .venv/bin/horovodrun ]; then \
	  PATH="$(CURDIR)/.venv/bin:$$PATH" mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np 2 $(run) experiment.py --mode=rehearsal; \
	else \
	  $(run) experiment.py --mode=rehearsal; \
	fi

tensorboard: setup  ## all runs of runs/ in a browser
	@.venv/bin/tensorboard --logdir=runs

test: setup  ## the tests, all that CI runs
	@$(run) -m pytest -m "not slow"

test-slow: setup  ## training and chaos runs that take minutes
	@$(run) -m pytest -m slow --timeout=1800 || [ $$? = 5 ]

lint: setup  ## ruff (lint and format), mypy, hadolint; pre-commit runs the same
	@$(run) -m ruff check .
	@$(run) -m ruff format --check .
	@$(run) -m mypy
	@.venv/bin/hadolint docker/*.Dockerfile
	@echo "lint is clean"

format: setup  ## rewrite files as `make lint` wants them
	@$(run) -m ruff check --fix . ; $(run) -m ruff format .

lock: setup  ## renew constraints.lock: the newest versions that pyproject.toml allows
	@.venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras \
	  --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command "make lock" \
	  pyproject.toml --output-file constraints.lock

wheelhouse:  ## all packages for hosts without internet, in wheelhouse/: ROLE=actor|learner WHEELS=cpu|gpu
	@[ -x $(run) ] || { echo "[set-up] there is no .venv here yet: make setup"; exit 1; }
	@$(run) docker/wheelhouse.py --role=$(ROLE) --device=$(WHEELS) "$(WHEELHOUSE)"

clean:  ## remove what set-up made here (the Horovod wheels in ~/.cache/impala_mm stay)
	rm -rf .venv .setup.lock .setup.log .mypy_cache .pytest_cache .ruff_cache .hypothesis
