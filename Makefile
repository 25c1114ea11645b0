# Two commands are all that a newcomer needs: `make demo` and `make test`. The rest is for those who work on it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WHEEL_VENV := .venv-wheel
# Two workers halve the time on two cores; every test makes its own namespaces, so they do not meet. The one that is done
# first takes over from the other: tests of real systemd take the longest, and stand together.
PYTEST_OPTIONS ?= -n 2 --dist worksteal

.PHONY: demo test check lint types layers scripts wheel-test matrix matrix-table bench fuzz soak other-kernel \
	tools-bullseye tools-bookworm tools-trixie format clean

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

# Every parser and decoder against a fuzzer, for so many seconds in all; what it finds is kept in tests/fuzz/cases. The
# fuzzer is no part of the usual environment: it is big, and not every Python has a wheel of it. FUZZ_OPTIONS=netlink
SECONDS ?= 60
fuzz: $(VENV)/ready
	$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/pip install -qq --disable-pip-version-check \
		--require-hashes --only-binary :all: -r tests/fuzz/requirements.lock || true
	$(BIN)/python -P tests/fuzz/run.py --seconds $(SECONDS) $(FUZZ_OPTIONS)

# The long profile of the property tests and state machines; then the kernels and the Debian that CI does not wait for,
# and a quarter of an hour of fuzzing.
soak: $(VENV)/ready
	HYPOTHESIS_PROFILE=soak $(BIN)/python -P -m pytest $(PYTEST_OPTIONS)
	$(MAKE) other-kernel tools-bullseye tools-bookworm tools-trixie
	.ci/fresh trixie
	$(MAKE) fuzz SECONDS=900

# What asks the kernel for routes and neighbours, the boot scripts, and the sweep with real legacy ebtables too, under
# Debian's own kernel; needs root.
OTHER_KERNEL_TESTS := tests/host tests/static_routes/test_script.py tests/static_routes/test_differential.py \
	tests/route_overlap/test_script.py tests/stale_cni/test_kernel.py
other-kernel: $(VENV)/ready
	.ci/kernel env HYPOTHESIS_PROFILE=wheel HOSTROUTING_NO_SKIP=1 \
		$(BIN)/python -P -m pytest $(PYTEST_OPTIONS) -p no:cacheprovider $(OTHER_KERNEL_TESTS)

# What speaks to nft, ebtables and ip, with the programs of another Debian: nft 0.9.8, 1.0.6, 1.1; ebtables 1.8.7, 1.8.9,
# 1.8.11; iproute2 5.9, 6.1, 6.15.
TOOLS_TESTS := tests/host/test_nft.py tests/host/test_ebtables.py tests/host/test_ebtables_rules.py tests/probe_snat \
	tests/static_routes/test_script.py tests/static_routes/test_differential.py tests/route_overlap/test_script.py \
	tests/test_default_route.py
tools-bullseye tools-bookworm tools-trixie: tools-%: $(VENV)/ready
	.ci/tools $* .tools/$*
	PATH="$(CURDIR)/.tools/$*/bin:$$PATH" HYPOTHESIS_PROFILE=wheel HOSTROUTING_NO_SKIP=1 \
		$(BIN)/python -P -m pytest $(PYTEST_OPTIONS) $(TOOLS_TESTS)

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/ready: requirements.lock pyproject.toml .ci/venv
	.ci/venv $(PYTHON) $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) $(WHEEL_VENV) .tools dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
