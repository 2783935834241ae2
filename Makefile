PYTHON ?= python3
BIN := .venv/bin

PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.PHONY: setup develop run example paper test package typescript soak soak-gateway simulate fuzz check lock audit bench docs clean
.SECONDARY:

setup: .venv/with-live .venv/with-lab  ## Build .venv with pinned versions: the service, clients, figures and traces

develop: .venv/with-dev  ## Add the tools of developers, which the tests and benchmarks need

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/with-%: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing bilinq[$*] into .venv, once"
	$(PIP) install -c constraints.txt -e ".[$*]"
	touch $@

.venv/with-dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing bilinq and the tools of its developers into .venv, once: one to two minutes"
	$(PIP) install -c constraints.txt -e ".[dev]"
	$(PIP) install -c constraints.txt --no-deps litellm
	touch .venv/with-live .venv/with-lab $@

run: .venv/with-live  ## The live service with a simulated fleet: watch it at the address that it prints; make run OPTIONS=--baseline
	$(BIN)/bilinq serve --demo $(OPTIONS)

example: .venv/with-lab  ## The paper's basic experiment: a table and a figure
	$(BIN)/python examples/basic_experiment.py --out out

paper: .venv/with-lab  ## Redraw the paper and judge its claims: out/paper/report.html
	$(BIN)/bilinq paper --out out/paper

test: develop  ## All tests
	$(BIN)/bilinq warm
	$(BIN)/python -m pytest -n 2

package: develop  ## Build wheel and sdist, install each extra alone in a fresh environment, and run what it promises: minutes
	$(BIN)/python tests/package.py

typescript: develop  ## Build a TypeScript client from /openapi.json and use it; needs Node.js and npm
	$(BIN)/python tests/live/typescript.py

soak: develop  ## Kill the live service 250 times under load, freeze it 1,000 times, take its database away, and audit what it kept: two hours
	$(BIN)/python tests/live/crash.py --kills 200 --database sqlite
	$(BIN)/python tests/live/crash.py --kills 50 --database postgresql
	$(BIN)/python tests/live/crash.py --kills 0 --away 30 --database postgresql
	$(BIN)/python tests/live/crash.py --kills 0 --hang 60 --database postgresql
	$(BIN)/python tests/live/freeze.py --freezes 1000 --pairs 2

soak-gateway: develop  ## Kill the gateway 200 times under load, with failing back ends, and audit what it kept: half an hour
	$(BIN)/python tests/gateway/soak.py --kills 100 --database sqlite
	$(BIN)/python tests/gateway/soak.py --kills 100 --database postgresql

simulate: develop  ## Simulate 100 hours of the live service under faults, from seeds: some minutes; make simulate HOURS=1000
	$(BIN)/python tests/live/simulate.py --hours $(or $(HOURS),100)

fuzz: develop  ## Solve a million random programs, send mutated requests and files, damage snapshots and backups: half an hour
	$(BIN)/python tests/property/allocation_fuzz.py --programs 1000000
	PYTHONPATH=tests $(BIN)/python tests/live/request_fuzz.py --streams 100000 --bodies 10000
	PYTHONPATH=tests $(BIN)/python tests/unit/file_fuzz.py --files 20000
	$(BIN)/python tests/live/state_fuzz.py --cases 10000

check: develop  ## Lint, types, import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lock: develop  ## Write deploy/requirements.lock and deploy/sbom.cdx.json again, after a change of constraints.txt
	$(BIN)/python deploy/supply_chain.py lock
	$(BIN)/python deploy/supply_chain.py sbom

audit: develop  ## Let pip check the hashes of deploy/requirements.lock; needs Linux, Python 3.11 and an index
	$(BIN)/python -m pip install --disable-pip-version-check --dry-run --ignore-installed --require-hashes --only-binary :all: -r deploy/requirements.lock

bench: develop  ## Measure; writes out/bench.json
	$(BIN)/bilinq bench --out out/bench.json

docs: develop  ## Build the pages into site/
	$(BIN)/python docs/build.py --out site

clean:  ## Remove what can be made again
	rm -rf .venv out site build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
