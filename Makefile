# `make demo` and `make test` set up what they need in .venv; see scripts/install.sh for the
# variables that choose another Python or another build of torch.
.DEFAULT_GOAL := help
.PHONY: help demo test test-slow mutants check lint types audit examples docs site site-serve \
	notebooks test-notebooks gpu-check test-versions release-check format clean

BIN := .venv/bin
STAMP := .venv/.stamp-installed
PYTEST_ARGS ?=
# Two workers of one thread each: on a busy machine more threads only make the tests slower. A file
# goes to one worker, so that what its tests share is made once. Compiled tests are kept: pytest takes
# ten seconds to rewrite their asserts.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n 2 --dist loadfile

export PYTHON TORCH TORCH_INDEX TORCH_BACKEND

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt scripts/install.sh
	scripts/install.sh
	@touch $@

demo: $(STAMP) ## Fine-tune a small pre-trained model with and without a regularizer (offline, CPU)
	$(BIN)/smoothtune demo

test: $(STAMP) ## Run the fast tests and the doctests
	$(PYTEST) -m "not slow" --doctest-modules src tests $(PYTEST_ARGS)

test-slow: $(STAMP) ## Run the tests that take minutes, the real MiniLM, or all architectures
	$(PYTEST) -m slow tests $(PYTEST_ARGS)

mutants: $(STAMP) ## Put small faults into core, functional and methods; the tests should see them
	OMP_NUM_THREADS=1 $(BIN)/python scripts/mutants.py $(or $(MUTANTS_ARGS),--sample 160)

check: lint types test examples ## All that a change must pass: style, types, tests, examples

lint: $(STAMP) ## Check style, formatting and which folder imports which
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(STAMP) ## Check the types
	$(BIN)/mypy

audit: ## Look the pinned versions up among known vulnerabilities (needs a network, and uv or pipx)
	$(if $(shell command -v uvx),uvx,pipx run) pip-audit --requirement constraints.txt

examples: $(STAMP) ## Run every script in examples/
	@set -e; for example in $(wildcard examples/*.py); do \
		echo "== $$example"; OMP_NUM_THREADS=1 $(BIN)/python $$example; done

docs: $(STAMP) ## Write the pages that are made from the code
	$(BIN)/python scripts/docs.py

site: $(STAMP) ## Build the documentation site in site/; broken links and long sentences are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python scripts/check_site.py site
	$(BIN)/python scripts/readability.py

site-serve: $(STAMP) ## Show the site at 127.0.0.1:8000 and build it anew at every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

test-notebooks: $(STAMP) ## Run every cell of the notebooks, and write nothing
	$(subst loadfile,load,$(PYTEST)) -m slow tests/test_notebooks.py

notebooks: $(STAMP) ## Run the notebooks and write what they print
	OMP_NUM_THREADS=1 $(BIN)/python scripts/notebooks.py

gpu-check: $(STAMP) ## Compare methods on a GPU with the CPU, and what they cost; writes gpu-check/
	@$(BIN)/python scripts/gpu_check.py $(GPU_CHECK_ARGS); status=$$?; \
		$(BIN)/python benchmarks/gpu_cost.py --output gpu-check/gpu-cost || status=1; exit $$status

test-versions: $(STAMP) ## Run the fast tests with four pairs of torch and transformers, the oldest first
	$(BIN)/python scripts/versions.py $(PAIRS)

release-check: $(STAMP) ## Build wheel and sdist, check them, and run the demo from the wheel alone
	scripts/release_check.sh

format: $(STAMP) ## Format the code and apply the safe fixes
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove .venv and all caches
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
