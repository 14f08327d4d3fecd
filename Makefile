# `make train` and `make test` work at once: they install what they need. `make help` lists all
# targets. Options: PYTHON=python3.12, and three that the next commands remember: DEVICE=gpu|cpu,
# MPI=system|venv, LEARNERS=1|all (1: no Horovod, MPI, SSH, tests). `make setup WHEELHOUSE=FOLDER`
# installs from a folder of `make wheelhouse`, without internet.

PYTHON ?= python3
ROLE ?= actor
WHEELS ?= cpu
PYTHONS ?=
POLICY ?= cartpole
run := .venv/bin/python

# Open MPI runs as root, as is usual in containers, only if both variables are set.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
# Variables of an environment that is active in the shell are removed: .venv is used.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help setup horovod everything train rehearse watch tensorboard docs test test-slow lint format lock changelog release wheelhouse clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

setup:  ## install everything into .venv; LEARNERS=1 leaves out Horovod and tests, until LEARNERS=all
	@command -v "$(PYTHON)" >/dev/null || { echo "[set-up] $(PYTHON) was not found: 'apt-get install python3 python3-venv', or make PYTHON=/path/to/python3.11"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 7))' || { echo "[set-up] $(PYTHON) is too old: TensorFlow 2.21 needs Python 3.11, 3.12 or 3.13: make PYTHON=/path/to/python3.11"; exit 1; }
	@"$(PYTHON)" docker/install.py $(DEVICE:%=--device=%) $(MPI:%=--mpi=%) $(WHEELHOUSE:%=--wheelhouse=%) \
	  $(if $(LEARNERS),--role=$(if $(filter 1,$(LEARNERS)),single,all)) $(again) $(also)

horovod: again := --again
horovod: override LEARNERS := all
horovod: setup  ## run set-up again, with Horovod's build, even if it is up to date

train: setup  ## solve CartPole with the cluster of workers.csv.example, all on this machine
	@logdir=runs/CartPole-v1-$$(date +%Y%m%d-%H%M%S)-$$$$; \
	$(run) run_experiment_mm_raw.py --level_name=CartPole-v1 --batch_size=4 --max_seconds=160 \
	  --logdir=$$logdir && \
	$(run) sandbox/results curve $$logdir

rehearse: setup  ## check the all-reduce with two learners under mpirun (one without Horovod)
	@if [ -x .venv/bin/horovodrun ]; then \
	  PATH="$(CURDIR)/.venv/bin:$$PATH" mpirun --oversubscribe --mca mpi_yield_when_idle 1 -np 2 $(run) experiment.py --mode=rehearsal; \
	else \
	  $(run) experiment.py --mode=rehearsal; \
	fi

watch: setup  ## play a trained policy, into a window or else a video in videos/: POLICY=cartpole
	@if [ -n "$$DISPLAY$$WAYLAND_DISPLAY" ]; then how=--render; else how=--video_dir=videos; fi; \
	$(run) experiment.py --mode=test --policy=$(POLICY) --deterministic --test_num_episodes=1 \
	  --num_envs=1 $$how

tensorboard: setup  ## show all runs in runs/ in a browser
	@.venv/bin/tensorboard --logdir=runs

docs: also := --docs
docs: setup  ## build the site of these pages: build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(run) -m mkdocs build --strict --config-file sandbox/site/mkdocs.yml
	@echo "the site is built: open build/site/index.html, or serve it with"
	@echo "  $(run) -m http.server --bind 127.0.0.1 --directory build/site 8080"

everything: setup
	@[ -x .venv/bin/ruff ] || { echo "[set-up] LEARNERS=1 leaves out what this needs: 'make setup LEARNERS=all' installs it"; exit 1; }

test: everything  ## run the tests, all that CI runs
	@$(run) -m pytest -m "not slow" -n 3

test-slow: everything  ## run the training and chaos tests that take minutes
	@$(run) -m pytest -m slow || [ $$? = 5 ]

lint: everything  ## run ruff (lint and format), mypy and hadolint, as pre-commit does
	@$(run) -m ruff check .
	@$(run) -m ruff format --check .
	@$(run) -m mypy
	@.venv/bin/hadolint docker/*.Dockerfile
	@echo "lint is clean"

format: everything  ## rewrite files so that `make lint` accepts them
	@$(run) -m ruff check --fix . ; $(run) -m ruff format .

lock: setup  ## renew constraints.lock with the newest versions that pyproject.toml allows
	@.venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	  $$($(run) -c "import tomllib; read = tomllib.load(open('pyproject.toml', 'rb')); \
	  print(*(f'--extra={extra}' for extra in read['project']['optional-dependencies'] \
	  if extra not in read['tool']['impala_mm']['suites']))") --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command "make lock" \
	  pyproject.toml --output-file constraints.lock

changelog:
	@version=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml); \
	newest=$$(sed -n 's/^## //p' CHANGELOG.md | head -n 1); \
	[ "$$newest" = "$$version" ] || { echo "[release] the newest section of CHANGELOG.md is '$$newest', and pyproject.toml has version $$version: write a section '## $$version', or set the version"; exit 1; }

release: changelog lint test  ## lint, test, build the wheel and the sdist, and try the wheel in new environments
	@rm -rf dist build
	@.venv/bin/uv build --out-dir dist
	@$(run) sandbox/try_wheel.py dist/*.whl $(PYTHONS)

wheelhouse:  ## download packages for hosts without internet: ROLE=actor|learner WHEELS=cpu|gpu
	@[ -x $(run) ] || { echo "[set-up] there is no .venv yet: run 'make setup'"; exit 1; }
	@$(run) docker/wheelhouse.py --role=$(ROLE) --device=$(WHEELS) "$(or $(WHEELHOUSE),wheelhouse)"

clean:  ## remove what set-up made in this folder (Horovod's wheels in ~/.cache/impala_mm stay)
	rm -rf dist build .venv .setup.lock .setup.log .mypy_cache .pytest_cache .ruff_cache .hypothesis
