# Two commands are all that a newcomer needs: `make demo` and `make test`. The rest is for those who work on it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WHEEL_VENV := .venv-wheel
# Two workers halve the time on two cores; every test makes its own namespaces, so they do not meet. The one that is done
# first takes over from the other: tests of real systemd take the longest, and stand together.
PYTEST_OPTIONS ?= -n 2 --dist worksteal

.PHONY: demo test check lint types layers scripts wheel-test matrix matrix-table bench soak other-kernel format clean

demo: $(VENV)/ready
	@$(BIN)/python examples/demo.py

test: $(VENV)/ready
	$(BIN)/python -P -m pytest $(PYTEST_OPTIONS)

# Everything that CI runs; `make matrix` is a step of its own there.
check: test lint types layers scripts wheel-test

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready
	$(BIN)/mypy
	$(BIN)/mypy --config-file pyproject.toml tests examples

layers: $(VENV)/ready
	$(BIN)/lint-imports

scripts: $(VENV)/ready
	$(BIN)/shellcheck .ci/* tests/support/*.sh hostrouting/boot/assets/hostrouting-retry.sh

# The same tests against what users would install. A fresh environment, and -P keeps this folder off the path.
wheel-test: $(VENV)/ready
	rm -rf dist $(WHEEL_VENV)
	$(BIN)/pip wheel -qq --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	.ci/venv $(PYTHON) $(WHEEL_VENV) dist/hostrouting-*.whl
	HYPOTHESIS_PROFILE=wheel $(WHEEL_VENV)/bin/python -P -m pytest $(PYTEST_OPTIONS)

# Every trouble x {first apply, over an installed config} x {WARN, STRICT}, each booted twice; compared with
# docs/apply-matrix.md, which `make matrix-table` writes anew. A sample is part of `make test`.
matrix: $(VENV)/ready
	HOSTROUTING_MATRIX=all $(BIN)/python -P -m pytest $(PYTEST_OPTIONS) tests/system/test_matrix.py

matrix-table: $(VENV)/ready
	HOSTROUTING_MATRIX=write $(BIN)/python -P -m pytest $(PYTEST_OPTIONS) tests/system/test_matrix.py

# Ratios to a C program and to `ip -batch`, interleaved in one run; needs root for its namespace. BENCH_OPTIONS=--quick
bench: $(VENV)/ready
	$(BIN)/python tests/benchmarks/run.py --json bench.json $(BENCH_OPTIONS)

# The long profile of the property tests and state machines; then the kernels and the Debian that CI does not wait for.
soak: $(VENV)/ready
	HYPOTHESIS_PROFILE=soak $(BIN)/python -P -m pytest $(PYTEST_OPTIONS)
	$(MAKE) other-kernel
	.ci/fresh trixie

# What asks the kernel for routes and neighbours, and the boot scripts, under Debian's own kernel; needs root.
OTHER_KERNEL_TESTS := tests/host tests/static_routes/test_script.py tests/static_routes/test_differential.py \
	tests/route_overlap/test_script.py
other-kernel: $(VENV)/ready
	.ci/kernel env HYPOTHESIS_PROFILE=wheel HOSTROUTING_NO_SKIP=1 \
		$(BIN)/python -P -m pytest $(PYTEST_OPTIONS) -p no:cacheprovider $(OTHER_KERNEL_TESTS)

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/ready: requirements.lock .ci/venv
	.ci/venv $(PYTHON) $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) $(WHEEL_VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
