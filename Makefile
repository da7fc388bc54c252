# Everything is set up on demand in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test docs lint format clean

demo: .venv/demo
	$(BIN)/coupledqk demo

test: .venv/test
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 $(ARGS)

docs: .venv/docs
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo docs/_build/html/index.html

lint: .venv/lint .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: .venv/lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv demo docs/_build

# PyTorch first and pinned: this version has a build for the CPU alone; the package itself takes any torch >= 2.10.
.venv/torch:
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	touch $@

.venv/demo: .venv/torch pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	touch $@

.venv/test: .venv/torch pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

.venv/docs: .venv/torch pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

.venv/lint: .venv/torch pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[lint]'
	touch $@
