# The commands of README.md and of CI, in one place.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: setup demo test slow kills check lint types clean

$(BIN)/ggferry: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e .

$(VENV)/.dev: $(BIN)/ggferry
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

setup: $(BIN)/ggferry

demo: setup
	$(BIN)/convert fixtures/legacy-llama/ggjt1-20230428/q4_0.bin --to gguf -o demo.gguf --force

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -m 'not slow'

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -m 'slow and not kills'

kills: $(VENV)/.dev
	$(BIN)/python -m pytest -m kills -s

check: lint types

lint: $(VENV)/.dev
	$(BIN)/ruff check .

types: $(VENV)/.dev
	mkdir -p .typing && ln -sfn .. .typing/ggferry
	$(BIN)/mypy

clean:
	rm -rf $(VENV) demo.gguf demo.gguf.receipt.json
