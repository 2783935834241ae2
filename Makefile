PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup run example paper test soak fuzz check bench docs clean

setup: .venv/ready  ## Build .venv with pinned versions

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	$(BIN)/python -m pip download --quiet --disable-pip-version-check -c constraints.txt --no-deps --dest .venv/wheels litellm
	touch $@

run: setup  ## The live service with a simulated fleet: watch it at the address that it prints; make run OPTIONS=--baseline
	$(BIN)/bilinq serve --demo $(OPTIONS)

example: setup  ## The paper's basic experiment: a table and a figure
	$(BIN)/python examples/basic_experiment.py --out out

paper: setup  ## Redraw the paper and judge its claims: out/paper/report.html
	$(BIN)/bilinq paper --out out/paper

test: setup  ## All tests
	$(BIN)/bilinq warm
	$(BIN)/python -m pytest -n 2

soak: setup  ## Kill the live service 250 times under load, take its database away, and audit what it kept: some minutes
	$(BIN)/python tests/live/crash.py --kills 200 --database sqlite
	$(BIN)/python tests/live/crash.py --kills 50 --database postgresql
	$(BIN)/python tests/live/crash.py --kills 0 --away 30 --database postgresql

fuzz: setup  ## Solve a million random programs and check each answer: some minutes
	$(BIN)/python tests/property/allocation_fuzz.py --programs 1000000

check: setup  ## Lint, types, import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup  ## Measure; writes out/bench.json
	$(BIN)/bilinq bench --out out/bench.json

docs: setup  ## Build the pages into site/
	$(BIN)/python docs/build.py --out site

clean:  ## Remove what can be made again
	rm -rf .venv out site build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
