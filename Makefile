# From a clone to trained models: `make demo`; `make test`. Both set up what they need. `make help` lists everything.
#
#   PYTHON=python3.12     the interpreter for a new environment (3.10 to 3.14)
#   VENV=path             where the environment is, or is to be; an existing one is completed, never replaced
#   STACK=openmmlab       the original OpenMMLab packages in place of the maintained ones
#   MODEL=name            only this model in the demo: mask_rcnn, segmenter or retinanet_dtn_pvt
#   CUDA=0                operators for the CPU only, although there are a GPU and nvcc
#   OPS=torchvision       mmcv with torchvision's NMS and RoIAlign instead of compiled operators: enough for the demo on a CPU
#   BENCH='--only pvt'   options of make bench and bench-gpu
#   DEVICE=cpu            try make test-gpu without a GPU
#   ONLY='3.14'           Pythons for make matrix
#   WORKERS=1             processes that run tests; without it as many as there are cores, at most 4
#   SOURCE_URL=https://host/owner/mmlape/blob/main   where links of the site to sources lead

STACK ?= onedl
WORKERS ?= logical
DEVICE ?= cuda
VENV ?= $(if $(filter onedl,$(STACK)),.venv,.venv-$(STACK))
PY := '$(abspath $(VENV))/bin/python'
# The environment's own Python, else a tested one, else whatever python3 is, which setup_env refuses.
NEWEST := $(if $(filter openmmlab,$(STACK)),12,14)
FOUND := $(shell for p in $(PY) python3 python3.12 python3.13 python3.14 python3.11 python3.10; do \
  "$$p" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, $(NEWEST)))' 2>/dev/null \
  && { echo "$$p"; break; }; done)
INTERPRETER := $(or $(PYTHON),$(FOUND),python3)
SPHINX = $(PY) -m sphinx -q -W --keep-going -c docs -d docs/_build/doctrees
# Tests run side by side, each process on one thread; one that has nothing left takes over tests of another.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal --durations 30 --durations-min 3
SPELLED := $(wildcard *.md docs mmlape configs tools tests benchmarks examples setup.py)
FORMATTED := $(wildcard setup.py mmlape configs tools tests benchmarks examples docs/conf.py)
export CUDA SOURCE_URL

.DEFAULT_GOAL := help
.PHONY: help env demo experiment-position evidence test test-slow test-gpu test-slurm matrix bench bench-gpu lint format docs docs-links clean clean-env

help:  ## this list
	@sed -n 's/^#   /    /p' Makefile
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | awk -F'\t' '{ printf "make %-20s %s\n", $$1, $$2 }'

env:  ## set up the environment: seconds, or 2 to 5 minutes where mmcv was never compiled before
	@command -v $(INTERPRETER) >/dev/null \
	  || { echo 'error: there is no $(INTERPRETER): install Python 3.10 to 3.$(NEWEST), or give it: make env PYTHON=path' >&2; exit 1; }
	@$(INTERPRETER) tools/setup_env --venv '$(VENV)' --stack '$(STACK)' $(if $(OPS),--ops '$(OPS)')

demo: env  ## train, evaluate and draw a LaPE detector and a LaPE segmenter on data made on the spot
	@$(PY) tools/demo.py $(addprefix --model ,$(MODEL))

experiment-position: env  ## does it matter how position joins? 75 short trainings; resumable
	@$(PY) tools/experiments/position.py

evidence: env  ## the experiments on real images in DATA=folder (docs/evidence.md); resumable, about 60 hours of one core
	@$(PY) tools/experiment.py all $(if $(DATA),--data '$(DATA)')

test: env  ## the fast tests
	$(PYTEST) -m 'not slow'

test-slow: env  ## the other tests
	$(PYTEST) -m slow

test-gpu: env  ## the tests that need a GPU; they need no data and write work_dirs/gpu_report.md
	$(PY) -m pytest tests/gpu --device $(DEVICE)

test-slurm: env  ## trainings in a real SLURM, started for it on this machine: 5 minutes
	OMP_NUM_THREADS=1 $(PY) -m pytest tests/slurm

matrix:  ## smoke tests on the Pythons of this machine (ONLY='3.13 3.14'), with both stacks; writes the table of docs/install.md
	@$(INTERPRETER) tools/developers/matrix.py $(ONLY)

bench: env  ## our networks and norms beside upstream's and published maths, on one thread: minutes
	@$(PY) -m benchmarks $(BENCH)

bench-gpu: env  ## what this project wants to know of a GPU: published batches, compiled blocks, profiles; resumable
	@$(PY) -m benchmarks.on_gpu $(BENCH)

lint: env  ## what CI checks: style, formatting, types, docstrings and spelling
	$(PY) -m ruff check $(FORMATTED)
	$(PY) -m ruff format --check $(FORMATTED)
	$(PY) -m mypy
	$(PY) tools/developers/check_docstrings.py
	$(PY) -m codespell_lib $(SPELLED)

format: env  ## repair what lint complains about, as far as that goes by itself
	$(PY) -m ruff check --fix $(FORMATTED)
	$(PY) -m ruff format $(FORMATTED)

docs: env  ## the user guide and the API reference as a site, docs/_build/html
	$(SPHINX) -b html . docs/_build/html
	@echo 'open docs/_build/html/index.html'

docs-links: env  ## do the addresses in the docs answer? needs the network
	$(SPHINX) -b linkcheck . docs/_build/linkcheck

clean:  ## remove builds and caches; environments, work_dirs and compiled wheels stay
	rm -rf build dist *.egg-info docs/_build .pytest_cache .ruff_cache .mypy_cache .coverage htmlcov
	find mmlape configs tools tests -name __pycache__ -type d -prune -exec rm -rf {} +

clean-env:  ## remove the environment of this stack (compiled wheels stay in the cache)
	@test ! -e '$(VENV)' || grep -qs '"ours": true' '$(VENV)/.mmlape/state.json' || { echo 'error: $(VENV) was not made by make env' >&2; exit 1; }
	rm -rf '$(VENV)'
