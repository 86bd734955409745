# make demo | make test | make lint: each sets up its own virtual environment first, once.
# PYTHON=/path/to/python3.11 chooses the interpreter.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint setup clean help
.DEFAULT_GOAL := help

help:
	@echo "make demo   the whole way on a built-in model; writes demo/report.html"
	@echo "make test   the test suite (under five minutes on two cores)"
	@echo "make lint   ruff and mypy"
	@echo "make clean  remove $(VENV), demo, build and dist"

demo: $(READY)
	$(BIN)/p2p-export demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(READY)

# Made again when what it installs changes; the stamp is written only after everything is there.
$(READY): pyproject.toml constraints.txt
	@python=$$(PYTHON="$(PYTHON)" sh .ci/find-python) && "$$python" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) demo build dist *.egg-info
