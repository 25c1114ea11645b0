# To begin, use `make demo` and `make test`; while working, `make test-package PACKAGE=fib` and `make quick`. All else is a session of nox,
# which the environment has: `.venv/bin/nox --list`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Every test makes its own namespaces, so tests may run side by side: four on two cores, since those of real systemd mostly
# wait. An idle worker takes tests from the others, because these tests take the longest and are next to each other.
PYTEST_OPTIONS ?= -n 4 --dist worksteal
# Not `python -m pytest`, which would add this folder to the path and so hide an installed wheel.
PYTEST := $(BIN)/pytest $(PYTEST_OPTIONS)
# Without compiled files each process of a test run compiles its tests and packages again, which takes longer than the tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo e2e test test-package quick check bench dist

demo: $(VENV)/ready
	@$(BIN)/python examples/demo.py

# A systemd-nspawn machine from boot to reset, as docs/e2e.md shows it; needs root.
e2e: $(VENV)/ready
	@PYTHONPATH=tests $(BIN)/python tests/e2e/boot_to_reset.py

# All tests of at most about a second, and two dozen stories on real systemd: five minutes on two quiet cores.
test: $(VENV)/ready
	$(PYTEST)

# The tests that kill the mutants of a package, except the slow ones: PACKAGES in tests/mutants/run.py.
test-package: $(VENV)/ready
	@test -n "$(PACKAGE)" || { echo "name a package: make test-package PACKAGE=fib; $(BIN)/python tests/mutants/run.py --list has all" >&2; exit 2; }
	tests=$$($(BIN)/python tests/mutants/run.py --tests $(PACKAGE)) && HYPOTHESIS_PROFILE=package $(PYTEST) -q $$tests

# The loop while working, in 15 seconds: the tests of the library's packages that need neither root nor namespaces, with few
# examples. Those of the program (cli, fleet, watch), of its release and of the pages start processes. Each worker collects all
# tests, so two are faster here than four.
quick: $(VENV)/ready
	HYPOTHESIS_PROFILE=quick $(PYTEST) -q -n 2 --ignore-glob='tests/test_*' --ignore=tests/node/test_image.py \
		$(addprefix --ignore=tests/,cli fleet fuzz release system watch)

# All tests, and all that CI runs but the other Pythons, the single file, the tools of other Debians, the fuzzer and the fresh
# machine.
check: $(VENV)/ready
	$(BIN)/nox --session lint types tests wheel public_types

# All files of a release in dist/, from the last commit: each is built twice, and both builds must be the same bytes. Then each is
# installed and run, the packages as root only, in a minimal Debian. Before, `.ci/packages` as root installs the tools.
dist: $(VENV)/ready
	$(BIN)/nox --session dist

# Ratios to `ip -batch` and to bash scripts, interleaved in one run; needs root for its namespace. BENCH_OPTIONS=--quick
bench: $(VENV)/ready
	$(BIN)/python benchmarks/run.py --json bench.json $(BENCH_OPTIONS)

$(VENV)/ready: requirements.lock pyproject.toml .ci/venv
	.ci/venv $(PYTHON) $(VENV)
	@touch $@
