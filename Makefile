PYTHON ?= python3
MINUTES ?= 10
BIN := .venv/bin
STAMP := .venv/.stamp
PEERS := .venv/.peers
COMPILE := $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header

.PHONY: help .venv demo test check bench soak docs lock format clean

help: ## Show this text
	@awk -F ':.*## ' '/^[a-z.]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv: $(STAMP) ## Make the virtual environment from the lock

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP) ## Index the standard library, and ask who calls json.dumps
	$(BIN)/python -m examples.code_index

test: $(STAMP) ## Run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: $(STAMP) ## Lint, check the format, the types and the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/python -m pytest tests/test_architecture.py -q

bench: $(PEERS) ## Run the benchmarks
	$(BIN)/python -m benchmarks

$(PEERS): $(STAMP) requirements-bench.lock
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements-bench.lock
	@touch $@

soak: $(STAMP) ## Run the soak test for MINUTES (default 10), and write evidence/reliability.json
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --evidence evidence/reliability.json

docs: $(STAMP) ## Write the reference pages that follow from the code
	$(BIN)/python -m tests.reference_pages

lock: $(STAMP) ## Renew requirements.lock and requirements-bench.lock
	$(COMPILE) pyproject.toml --extra test --extra dev --output-file requirements.lock
	$(COMPILE) benchmarks/requirements.in --constraint requirements.lock --output-file requirements-bench.lock

format: $(STAMP) ## Format the code and fix what lint can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the environment, caches and builds
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
