# Everything is set up on demand in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
BEGAN := $(shell date +%s)

.PHONY: demo test test-slurm soak docs lint format test-min release-check clean

demo: .venv/demo
	@echo "Set-up took $$(( $$(date +%s) - $(BEGAN) )) s. The command is $(BIN)/coupledqk."
	$(BIN)/coupledqk demo

test: .venv/test
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 $(ARGS)

# Starts a Slurm of one node; needs root and, on Debian, `apt-get install slurm-wlm munge`.
test-slurm: .venv/test
	COUPLEDQK_TEST_SLURM=1 OMP_NUM_THREADS=1 tests/with_slurm.sh $(BIN)/pytest tests/test_slurm.py $(ARGS)

# The long form of tests/faults; ARGS="--parts kills,flips" runs some of its parts.
soak: .venv/test
	OMP_NUM_THREADS=1 $(BIN)/python tests/faults/soak.py $(ARGS)

# The oldest versions that pyproject.toml allows, in an environment of their own, with the extras gpt2 and lab only. PyTorch is the pinned one:
# of older versions, the package index has only builds with CUDA.
test-min: .venv-min/ready
	OMP_NUM_THREADS=1 .venv-min/bin/pytest -k "not tensorboard" $(MINIMAL) $(ARGS)

MINIMAL := $(addprefix tests/test_,$(addsuffix .py,attention batches config corpora costs fused gradients initial layers \
	linear loss model provenance resuming runs sampling sealed shards statistics terminal tokenizers training))

.venv-min/ready: pyproject.toml tests/oldest.py
	$(PYTHON) -m venv .venv-min
	.venv-min/bin/pip install --quiet --disable-pip-version-check torch==2.13.0
	.venv-min/bin/pip install --quiet --disable-pip-version-check $$($(PYTHON) tests/oldest.py)
	.venv-min/bin/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

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

# Builds the package, installs the wheel into a new environment in another folder, and uses it there.
release-check: .venv/release
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && $(PYTHON) -m venv "$$place/env" && \
	"$$place/env/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 && \
	"$$place/env/bin/pip" install --quiet --disable-pip-version-check "$$(ls "$$PWD"/dist/*.whl)[lab]" && \
	"$$place/env/bin/pip" check && cd "$$place" && env/bin/coupledqk doctor && env/bin/coupledqk demo

clean:
	rm -rf .venv .venv-min demo dist docs/_build

# PyTorch first and pinned: this version has a build for the CPU alone; the package itself takes any torch >= 2.10.
.venv/torch:
	@echo "Setting up .venv with PyTorch, once; nothing is shown while pip works."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	touch $@

.venv/demo: .venv/torch pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[lab]'
	touch $@

.venv/test: .venv/torch pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

.venv/docs: .venv/torch pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

.venv/release: .venv/torch pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check 'build>=1.2' 'twine>=6'
	touch $@

.venv/lint: .venv/torch pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[lint]'
	touch $@
