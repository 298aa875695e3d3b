# Everything runs in .venv, which the first target that needs it sets up. Python 3.11 or newer and make are enough.

# The first of these that runs and is new enough; `make PYTHON=/path/to/python3.12 setup` uses another.
PYTHONS := python3.11 python3 python3.12 python3.13 python3.14
PYTHON ?= $(firstword $(foreach name,$(PYTHONS),$(shell $(name) -c $(NEW_ENOUGH) >/dev/null 2>&1 && echo $(name))))
NEW_ENOUGH = 'import sys; sys.exit(sys.version_info < (3, 11))'

DEMO_QUESTION ?= Should a team of five move its nightly batch jobs from cron on one server to a managed workflow service?
DEMO_OPTIONS ?=
PYTEST_OPTIONS ?=
BENCH_OPTIONS ?=
STUDY_OPTIONS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input
# Bytecode is written even where the environment forbids it: otherwise each process compiles the tests and the package again.
# One worker more than cores: the tests with real processes have two workers, and mostly wait.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS)
READY := .venv/.ready
BENCH_READY := .venv/.ready-bench
DOCS_READY := .venv/.ready-docs

export DEMO_QUESTION

.PHONY: help setup demo test test-all test-rest golden check bench study-debate study-documents study-review docs pictures clean

help:
	@echo 'make setup      install into .venv (done by the other targets where needed)'
	@echo 'make demo       a small deliberation on the embedded local model; writes demo-report/'
	@echo 'make test       the tests, the long matrices sampled'
	@echo 'make test-all   the tests, the long matrices whole'
	@echo 'make test-rest  what test-all adds to test'
	@echo 'make check      style, types, layers, bans, documentation'
	@echo 'make golden     write the golden files of the tests anew, and list what changed'
	@echo 'make bench      the benchmarks; a table, and benchmarks/results.json'
	@echo 'make study-debate  what debates recover of planted worlds; STUDY_OPTIONS="--worlds 40" for fewer'
	@echo 'make study-documents  what readers of dealt documents bring together'
	@echo 'make study-review  what a review finds of planted defects; STUDY_OPTIONS="--model openai:gpt-5-mini"'
	@echo 'make pictures   the pictures of pages that the documentation shows, anew'
	@echo 'make docs       the documentation site, into site/; fails on a broken link'
	@echo 'make clean      remove all that these targets made here, .venv included'

setup: $(READY)

demo: $(READY)
	$(BIN)/consilience emergence "$$DEMO_QUESTION" --children 3 --depth 2 --max-rounds 1 --reply-tokens 600 --model local --out demo-report $(DEMO_OPTIONS)
	@echo
	@echo 'Open the page:    demo-report/report.html'
	@echo 'Ask your own:     $(BIN)/consilience "Should we …?"'
	@echo 'A better model:   $(BIN)/consilience "Should we …?" --model http://127.0.0.1:11434/v1#qwen3:8b   (Ollama), or'
	@echo '                  --model openai:gpt-5-mini   with OPENAI_API_KEY set; more: docs/recipes.md'

test: $(READY)
	$(PYTEST) $(PYTEST_OPTIONS)

test-all: $(READY)
	$(PYTEST) --whole $(PYTEST_OPTIONS)

test-rest: $(READY)
	$(PYTEST) --rest $(PYTEST_OPTIONS)

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py tests/test_bans.py tests/test_docs.py

golden: $(READY)
	$(BIN)/python -m pytest --golden $(PYTEST_OPTIONS)
	git diff --stat -- '*/golden/*'

bench: $(BENCH_READY)
	$(BIN)/python benchmarks/run.py $(BENCH_OPTIONS)

study-debate: $(READY)
	$(BIN)/python benchmarks/study_debate.py $(STUDY_OPTIONS)

study-documents: $(READY)
	$(BIN)/python benchmarks/study_documents.py $(STUDY_OPTIONS)

study-review: $(READY)
	$(BIN)/python benchmarks/study_review.py $(STUDY_OPTIONS)

pictures: $(READY)
	PYTHONPATH=benchmarks:tests $(BIN)/python docs/pictures/take.py

docs: $(DOCS_READY)
	$(BIN)/zensical build --strict --clean

clean:
	rm -rf .venv demo-report dist build site benchmarks/results.json
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
	find src tests $(wildcard benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +

# pip learnt --group in 25.1, and a new environment may hold an older one.
$(READY): pyproject.toml
	@test -n '$(PYTHON)' || { \
	  echo 'Consilience needs Python 3.11 or newer; none of these is: $(PYTHONS).' >&2; \
	  echo 'Install one, or name it: make PYTHON=/path/to/python3.11 setup' >&2; exit 1; }
	@$(PYTHON) -c $(NEW_ENOUGH) || { \
	  echo 'Consilience needs Python 3.11 or newer; $(PYTHON) is not, or does not run.' >&2; \
	  echo 'Name another one: make PYTHON=/path/to/python3.11 setup' >&2; exit 1; }
	@{ $(BIN)/python -c $(NEW_ENOUGH) && $(BIN)/python -m pip --version; } >/dev/null 2>&1 || { \
	  echo "[1/3] Creating .venv with $$($(PYTHON) --version) ..."; \
	  $(PYTHON) -m venv --clear .venv || { rm -rf .venv; exit 1; }; }
	@echo '[2/3] Updating pip ...'
	@$(PIP) install --upgrade 'pip>=25.1'
	@echo '[3/3] Installing Consilience, the local model runtime and the development tools (one to three minutes) ...'
	@$(PIP) install --editable '.[local]' --group dev
	@touch $@
	@echo 'Ready.'

$(BENCH_READY): $(READY)
	@echo 'Installing what the benchmarks compare with (about half a minute) ...'
	@$(PIP) install --group bench
	@touch $@

$(DOCS_READY): $(READY)
	@echo 'Installing what builds the documentation site ...'
	@$(PIP) install --group docs
	@touch $@
