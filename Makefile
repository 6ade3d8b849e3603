# GPU sharing on Kubernetes, proven end to end.  `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup native prepare e2e test lint test-unit test-native test-component test-e2e test-soak test-browser test-gpu test-kind clean

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CASES  ?= co_location/a100-example
PROVIDER ?= auto
ARGS   ?=
N      ?= 20
# Two at once, each file's tests in order on one worker; tests with a cluster run alone.
SPREAD := -n 2 --dist loadfile

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.stamp ## Make the virtual environment from the lock file

$(VENV)/.stamp: requirements.lock pyproject.toml tools/setup-venv
	@tools/setup-venv "$(PYTHON)" "$(VENV)"
	@touch $@

native: setup ## Build the C libraries and programs
	@$(BIN)/python -m testbed.native.build

prepare: native ## Fetch or build Kubernetes, containerd, PyTorch, images
	@$(BIN)/testbed prepare >/dev/null

e2e: native ## Main job: cluster, stack, notebook, checks, verdict (PROVIDER=auto, process or kind)
	@$(BIN)/testbed run $(CASES) --provider $(PROVIDER) $(ARGS)

test: lint test-unit test-native test-component test-e2e ## Run all tests

lint: setup ## Lint, types, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

test-unit: native ## Pure parts, no network, no cluster
	@$(BIN)/python -m pytest tests/unit $(SPREAD) $(ARGS)

test-native: prepare ## C libraries, then once more with sanitizers
	@$(BIN)/python -m pytest tests/native $(SPREAD) $(ARGS)

test-component: prepare ## Webhook, extender, plugin, monitor against a real API server
	@$(BIN)/python -m pytest tests/component $(ARGS)

test-e2e: prepare ## Process cluster and the core cases
	@$(BIN)/python -m pytest tests/e2e $(ARGS)

test-kind: native ## Real kind in a Docker and a Podman of the testbed's own (root); not part of `make test`
	@why=$$($(BIN)/python tests/kind/capable.py); \
	if [ -n "$$why" ]; then echo "skipped, since this machine cannot: $$why"; exit 0; fi; \
	$(BIN)/testbed prepare --provider kind >/dev/null; \
	$(BIN)/python -m pytest tests/kind $(ARGS)

test-soak: prepare ## The core set N times in a row, fifty interruptions, hardships (N=20); a JSON summary
	@$(BIN)/python tests/soak.py --rounds $(N) $(ARGS)

test-browser: native ## The report's page in Chromium (Debian: chromium); not part of `make test`
	@command -v chromium google-chrome chrome >/dev/null || { echo "no Chromium (Debian: apt-get install chromium)" >&2; exit 2; }
	@$(BIN)/python -m pytest tests/browser $(ARGS)

test-gpu: native ## On a machine with a card: probe, cap, shares, NVML, kind nodes (docs/hardware.md); not part of `make test`
	@command -v nvidia-smi >/dev/null || { echo "no NVIDIA driver here (nvidia-smi); tests/gpu needs a real card" >&2; exit 2; }
	@mkdir -p build/gpu
	@PYTHONPATH=. $(PYTHON) tests/gpu/tools.py build/gpu/tools.tar.gz
	@$(BIN)/testbed doctor --provider kind --cards nvidia >build/gpu/doctor.txt || true
	@$(BIN)/testbed up --provider kind --cards nvidia --dry-run >build/gpu/dry-run.txt 2>&1 || true
	@PYTHONPATH=. $(PYTHON) tests/gpu/node_files.py build/gpu/node_files.json >/dev/null || echo "kind nodes: not tried, or build/gpu/node_files.json says what failed (it needs root: sudo make test-gpu)" >&2
	@$(PYTHON) tests/gpu/probe.py build/gpu/probe.json >/dev/null
	@$(PYTHON) tests/gpu/cap.py testbed/native/lib/libvgpu.so build/gpu/cap.json
	@PYTHONPATH=. $(PYTHON) tests/gpu/share.py testbed/native/lib/libvgpu.so build/gpu/share.json
	@PYTHONPATH=. $(PYTHON) tests/gpu/watch.py build/gpu/watch.json
	@echo "results in build/gpu"

clean: ## Remove what was built in this folder (downloads stay in ~/.cache/vgpu-testbed)
	@rm -rf build dist testbed/native/lib .mypy_cache .ruff_cache .pytest_cache .hypothesis
