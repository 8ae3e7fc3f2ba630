# Two commands are all set-up: `make demo` and `make test`. Each makes .venv and installs what it needs.
# Another torch (a CUDA build, another index): TORCH=torch PIP_FLAGS="--index-url ..." make demo

PYTHON ?= python3
TORCH ?= torch==2.13.0
PIP_FLAGS ?=
BIN := .venv/bin
QUICK_PYTHON = $(or $(wildcard $(BIN)/python),$(PYTHON))

.PHONY: demo test quick check check-native docs bench clean
.DELETE_ON_ERROR:

demo: .venv/demo.stamp
	$(BIN)/seqloom demo

test: .venv/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# Installs nothing: it takes .venv where there is one, and else the Python that is active.
quick:
	PYTHONPATH=$(CURDIR)/src OMP_NUM_THREADS=1 $(QUICK_PYTHON) -m pytest -m quick -n 2

check: .venv/dev.stamp
	$(BIN)/ruff format --check src tests benchmarks scripts examples docs
	$(BIN)/ruff check src tests benchmarks scripts examples docs
	$(BIN)/mypy
	$(BIN)/lint-imports

# The compiled loops under gcc's sanitizers; needs g++ and its libasan.
check-native: .venv/dev.stamp
	$(BIN)/python -m scripts.check_native

docs: .venv/docs.stamp
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

bench: .venv/dev.stamp
	$(BIN)/python -m benchmarks.training --write
	$(BIN)/python -m benchmarks.recurrent --write
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) --editable ".[bench]"
	$(BIN)/python -m benchmarks.ngram --write
	$(BIN)/python -m benchmarks.gpt --write
	$(BIN)/python -m benchmarks.outputs --write
	$(BIN)/python -m benchmarks.generation --write
	$(BIN)/python -m benchmarks.tokenising --write
	$(BIN)/python -m benchmarks.complete --write
	$(BIN)/python -m benchmarks.encoders --write
	$(BIN)/python -m benchmarks.encoder_decoders --write
	$(BIN)/python -m benchmarks.loading --write

clean:
	rm -rf .venv docs/_build

# torch first and by itself: asked for by another package, pip would take the largest build there is.
.venv/torch.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "seqloom needs Python 3.11 or newer; name one: make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) "$(TORCH)" numpy
	touch $@

.venv/%.stamp: .venv/torch.stamp pyproject.toml hatch_build.py $(wildcard src/seqloom/native/*.h src/seqloom/native/*.cpp src/seqloom/native/build.py)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) --editable ".[$*]"
	touch $@
