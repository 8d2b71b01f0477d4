# Everything a newcomer types. Nothing has to be done before: each target makes .venv first, which
# takes a minute once and no time afterwards.

STORE ?= .run/store
ARGS ?=

PYTHON_IN_VENV := .venv/bin/python
# With bytecode, even where the machine says to write none: the tests start thousands of Pythons.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(PYTHON_IN_VENV) -m pytest
# Suites beside the unit tests; `make crash` runs tests/crash, and so on.
SUITES := contract interop crash sim fuzz service

.PHONY: help setup run test check lint types unit peers monitors spark bench bench-spark pair manual clean $(SUITES)

help:
	@echo 'make run     a broker with its name server, ready to send and pull (STORE=DIR, ARGS="--port 10911")'
	@echo 'make test    everything, with the real clients of other languages (brings them first)'
	@echo 'make check   ruff, types, unit and contract tests: about two minutes, before each commit'
	@echo 'make bench   benchmarks; bench-spark: Spark reading from us and from Kafka'
	@echo 'make pair    BASE=COMMIT: the working tree against that state, in turns (PAIRS=15, LOADS=P2,P5)'
	@echo 'make setup   .venv with Aerobee installed; also: unit lint types spark manual clean $(SUITES)'

setup:
	@.ci/setup

run: setup
	exec .venv/bin/aerobee serve --store "$(STORE)" $(ARGS)

# One pytest run over all suites, so that its closing line speaks for all of them.
test: setup lint types peers
	$(PYTEST) tests --durations=20 $(ARGS)

# On all cores: these suites measure nothing, and share nothing but the code.
check: lint types
	$(PYTEST) tests/unit tests/test_layers.py tests/contract --numprocesses auto --dist worksteal $(ARGS)

lint: setup
	.venv/bin/ruff check .
	$(PYTHON_IN_VENV) -m aerobee.config.manual --check

types: setup
	.venv/bin/mypy -p aerobee

unit: setup
	$(PYTEST) tests/unit tests/test_layers.py --durations=5 $(ARGS)

peers: setup monitors
	@if [ -x tests/interop/setup.sh ]; then tests/interop/setup.sh; fi
	@tests/spark/setup.sh

# Prometheus, for the tests of /metrics.
monitors:
	@tests/service/setup.sh

interop: peers

service: monitors

# Drivers of two versions of PySpark against our daemon and the real Java broker.
spark: setup
	@tests/spark/setup.sh
	@tests/interop/setup.sh java
	$(PYTEST) tests/spark --durations=10 $(ARGS)

# A suite that does not exist yet is said, not failed.
$(SUITES): setup
	@if [ -d tests/$@ ]; then $(PYTEST) tests/$@ --durations=10 $(ARGS); \
	else echo "tests/$@: no such suite yet"; fi

bench: setup
	tests/interop/setup.sh java
	$(PYTHON_IN_VENV) -m tests.bench $(ARGS)

# Spark reading a topic of ours and of a real Kafka broker in turn, and log files. Nothing else should
# run meanwhile; it takes ten minutes.
bench-spark: setup
	@tests/spark/setup.sh 4.3
	@tests/bench/setup.sh
	$(PYTHON_IN_VENV) -m tests.bench.spark $(ARGS)

# The working tree against another state of the code, both servers up; docs/benchmarks.md says how to
# read it. Nothing else should run meanwhile; it takes five minutes.
pair: setup
	@exec $(PYTHON_IN_VENV) -m tests.bench.pair --base="$(BASE)" $(ARGS) \
		$(if $(PAIRS),--pairs="$(PAIRS)") $(if $(LOADS),--loads="$(LOADS)")

# The manual of all settings, made from their declarations.
manual: setup
	$(PYTHON_IN_VENV) -m aerobee.config.manual

clean:
	rm -rf .run .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
