# To begin, use `make demo` and `make test`; while working, `make quick`. The rest is for maintainers.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WHEEL_VENV := .venv-wheel
# Every test makes its own namespaces, so tests may run side by side: four on two cores, since those of real systemd mostly
# wait. An idle worker takes tests from the others, because these tests take the longest and are next to each other.
PYTEST_OPTIONS ?= -n 4 --dist worksteal
# Not `python -m pytest`, which would add this folder to the path and so hide an installed wheel.
PYTEST := $(BIN)/pytest $(PYTEST_OPTIONS)
# Without compiled files each process of a test run compiles its tests and packages again, which takes longer than the tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick unprivileged test-all pythons oldest coverage check lint types public-types layers scripts wheel sdist wheel-test pyz pyz-test packages reference api docs matrix matrix-table \
	bench fuzz mutants soak soak-tests soak-tools soak-fuzz fresh-trixie kernel-bullseye kernel-jammy kernel-bookworm kernel-noble kernel-trixie kernel-without-ipv6 \
	tools-focal tools-bullseye tools-jammy tools-bookworm tools-noble tools-trixie fleet-tools format clean

demo: $(VENV)/ready
	@$(BIN)/python examples/demo.py

# All tests of at most about a second, and two dozen stories on real systemd: four minutes.
test: $(VENV)/ready
	$(PYTEST)

# The slow tests, too, and more examples of the property tests.
test-all: $(VENV)/ready
	HYPOTHESIS_PROFILE=check $(PYTEST)

# The loop while working, in 15 seconds: the tests of the library's rooms that need neither root nor namespaces, with few
# examples. Those of the program (cli, fleet, watch), of its release and of the pages start processes. Each worker collects all
# tests, so two are faster here than four.
quick: $(VENV)/ready
	HYPOTHESIS_PROFILE=quick $(PYTEST) -q -n 2 --ignore-glob='tests/test_*' --ignore=tests/node/test_image.py \
		$(addprefix --ignore=tests/,cli fleet fuzz release system watch)

# All tests that need neither root nor namespaces, with few examples.
unprivileged: $(VENV)/ready
	HYPOTHESIS_PROFILE=quick $(PYTEST) -q

# `make unprivileged` on every other supported Python that this machine has; on the oldest one with the oldest dependencies.
pythons: oldest
	set -e; here=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	.ci/pythons | tail -n +2 | grep -v "^$$here " | while read -r version python; do \
		echo "== Python $$version"; \
		env -u HOSTROUTING_NO_SKIP $(MAKE) --no-print-directory unprivileged VENV=.venv-$$version PYTHON=$$python; \
	done

# `make unprivileged`, and the backends against the kernel, with the oldest supported Python, attrs and pyroute2.
oldest:
	set -- $$(.ci/pythons); echo "== Python $$1 and the oldest dependencies"; \
	$(MAKE) --no-print-directory .venv-oldest/ready VENV=.venv-oldest PYTHON=$$2
	.venv-oldest/bin/pip install -qq --disable-pip-version-check --require-hashes --no-deps -r .ci/oldest.lock
	set -e; set -- $(PYTEST_OPTIONS) -q; \
	env -u HOSTROUTING_NO_SKIP HYPOTHESIS_PROFILE=quick .venv-oldest/bin/pytest "$$@"; \
	HYPOTHESIS_PROFILE=again .venv-oldest/bin/pytest "$$@" tests/host/test_route_backends.py tests/host/test_pyroute_socket.py

# Statements and branches that the whole suite runs, system tests and child processes included. COVERAGE_OPTIONS=tests/net
# Every process writes a file into one folder: those without a right to write elsewhere, too, and those in other machines.
coverage: export COVERAGE_FILE := $(CURDIR)/.coverage-data/of
coverage: $(VENV)/ready
	rm -rf .coverage-data
	mkdir --mode 1777 .coverage-data
	HYPOTHESIS_PROFILE=again $(BIN)/coverage run -m pytest $(PYTEST_OPTIONS) $(COVERAGE_OPTIONS)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report $(if $(COVERAGE_OPTIONS),--fail-under=0)

# All tests, and all that CI runs but the other Pythons, the single file, the tools of other Debians, `make fuzz` and the
# fresh machine.
check: test-all lint types layers scripts wheel-test public-types

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/mutants/run.py --list > /dev/null

types: $(VENV)/ready
	$(BIN)/mypy
	$(BIN)/mypy --config-file pyproject.toml tests examples release

layers: $(VENV)/ready
	$(BIN)/lint-imports

scripts: $(VENV)/ready
	$(BIN)/shellcheck $(filter-out %.lock,$(wildcard .ci/*)) tests/support/*.sh hostrouting/boot/assets/hostrouting-*.sh \
		examples/fleet/npd/*.sh

wheel: $(VENV)/ready
	rm -rf dist $(WHEEL_VENV)
	$(BIN)/pip wheel -qq --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	.ci/venv $(PYTHON) $(WHEEL_VENV) dist/hostrouting-*.whl

# The sources as an archive, for distributions and for those who build from it.
sdist: $(VENV)/ready
	$(BIN)/hatchling build -t sdist -d dist

# `make unprivileged` against what users install. It imports every module and reads every file of the packages, so it fails if the
# wheel lacks one; more tests of the same code would prove no more about the wheel.
wheel-test: wheel
	HYPOTHESIS_PROFILE=quick $(WHEEL_VENV)/bin/pytest $(PYTEST_OPTIONS) -q
	$(WHEEL_VENV)/bin/hostrouting --version

# The command as one file. It has compiled modules for each supported Python of this machine: .ci/pythons lists them.
pyz: $(VENV)/ready
	$(BIN)/python release/pyz.py dist/hostrouting.pyz $$(.ci/pythons)

# The tests of the command that need no kernel, run by that file on each of these Pythons, and those on the kernel by one.
pyz-test: pyz
	set -e; .ci/pythons | while read -r version python; do \
		echo "== Python $$version"; \
		HOSTROUTING_COMMAND="$$python -I $(CURDIR)/dist/hostrouting.pyz" HYPOTHESIS_PROFILE=quick $(PYTEST) -q tests/cli; \
	done
	set -- $$(.ci/pythons); HOSTROUTING_COMMAND="$$2 -I $(CURDIR)/dist/hostrouting.pyz" $(PYTEST) -q tests/cli/test_node.py

# A package for Debian and Ubuntu, and one for distributions with rpm. That whose program, dpkg-deb or rpmbuild, is missing is
# left out; but in CI, and with PACKAGES_OPTIONS=--all, it is an error. The same sources and Pythons give the same bytes.
PACKAGES_OPTIONS ?= $(if $(CI),--all)
packages: $(VENV)/ready
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python release/packages.py $(PACKAGES_OPTIONS) dist $$(.ci/pythons)

# docs/reference.md, from the command, the fields of the config and the findings. A test fails if it is out of date.
reference: $(VENV)/ready
	$(BIN)/python release/reference.py
	$(BIN)/python release/pictures.py

# tests/public_api.txt, the public names with their signatures. A test fails if it is out of date.
api: $(VENV)/ready
	$(BIN)/python release/api.py

# The site, in build/site, and its tests: `nox -s docs`. A session has an environment of its own, from a lock; it needs Python 3.11.
docs: $(VENV)/ready
	$(BIN)/nox --session docs

# The share of public names whose types a user's type checker knows, of an installed wheel. The type checker is pyright, which
# is not in the usual environment: it installs Node.js.
public-types: wheel
	.ci/public-types $(WHEEL_VENV)

# Every trouble x {first apply, over an installed config} x {WARN, STRICT}, each booted twice; compared with
# docs/apply-matrix.md, which `make matrix-table` writes. Samples are part of `make test` and `make check`.
matrix: $(VENV)/ready
	HOSTROUTING_MATRIX=all $(PYTEST) tests/system/test_matrix.py

matrix-table: $(VENV)/ready
	HOSTROUTING_MATRIX=write $(PYTEST) tests/system/test_matrix.py

# Ratios to a C program and to `ip -batch`, interleaved in one run; needs root for its namespace. BENCH_OPTIONS=--quick
bench: $(VENV)/ready
	$(BIN)/python tests/benchmarks/run.py --json bench.json $(BENCH_OPTIONS)

# Every parser and decoder against a fuzzer, for SECONDS in all; failing inputs are stored in tests/fuzz/cases. The
# fuzzer is not in the usual environment: it is big, and not every Python has a wheel of it. FUZZ_OPTIONS=netlink
SECONDS ?= 60
fuzz: $(VENV)/ready
	$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/pip install -qq --disable-pip-version-check \
		--require-hashes --only-binary :all: -r tests/fuzz/requirements.lock || true
	$(BIN)/python tests/fuzz/run.py --seconds $(SECONDS) $(FUZZ_OPTIONS)

# Some 240 mistakes, each alone in a copy of the code: the tests of its room must fail. MUTANTS_OPTIONS="--sample 40", for example.
mutants: $(VENV)/ready
	$(BIN)/python tests/mutants/run.py $(MUTANTS_OPTIONS)

# All tests, the property tests with thousands of examples and a random seed; then the kernels, the tools and the Debian that
# CI does not wait for, and a quarter of an hour of fuzzing. At night CI runs each part by itself.
soak:
	$(MAKE) soak-tests
	$(MAKE) matrix
	$(MAKE) kernel-bullseye kernel-jammy kernel-bookworm kernel-noble kernel-trixie kernel-without-ipv6
	$(MAKE) soak-tools
	$(MAKE) fresh-trixie
	$(MAKE) soak-fuzz
soak-tests: $(VENV)/ready
	HYPOTHESIS_PROFILE=soak $(PYTEST) -o faulthandler_timeout=7200
soak-tools: tools-focal tools-bullseye tools-jammy tools-bookworm tools-noble tools-trixie
soak-fuzz:
	$(MAKE) fuzz SECONDS=900
fresh-trixie:
	.ci/fresh trixie

# Contracts, boot scripts and the sweep (with real legacy ebtables) under the kernels of three Debians and two Ubuntus: 5.10,
# 6.1, 6.12, 5.15 and 6.8, with VRFs and devices of the type dummy; needs root. That of Debian 12 also without IPv6. What needs no
# kernel is left out.
OTHER_KERNEL_TESTS := tests/test_kernel_facts.py tests/test_ipv6_facts.py tests/testing/test_kernel_equivalence.py \
	tests/host/test_route_backends.py tests/host/test_network_events.py tests/host/test_link_layer.py tests/host/test_ipv6.py \
	tests/host/test_nft.py tests/host/ebtables/test_ebtables.py \
	tests/static_routes/test_script.py tests/static_routes/test_differential.py \
	tests/route_overlap/test_script.py tests/route_overlap/test_announced.py tests/route_overlap/test_vrf.py \
	tests/route_overlap/test_plain.py tests/route_overlap/test_plain_fabric.py tests/route_overlap/test_plain_worlds.py \
	tests/azure/stale_cni/test_kernel.py
kernel-bullseye kernel-jammy kernel-bookworm kernel-noble kernel-trixie: kernel-%: $(VENV)/ready
	KERNEL_SUITE=$* .ci/kernel env HYPOTHESIS_PROFILE=kernel HOSTROUTING_NO_SKIP=1 \
		$(PYTEST) -p no:cacheprovider -k 'not Memory and not TestFiles' $(OTHER_KERNEL_TESTS)
kernel-without-ipv6: $(VENV)/ready
	KERNEL_OPTIONS=ipv6.disable=1 .ci/kernel env HYPOTHESIS_PROFILE=kernel \
		$(PYTEST) -p no:cacheprovider tests/static_routes/test_script.py tests/route_overlap/test_script.py tests/route_overlap/test_vrf.py

# The tests that call bash, nft, ebtables or ip, with the programs of another Debian or Ubuntu: docs/supported-versions.md lists
# their versions. Of the oldest Ubuntu only bash and ip: it has bash 5.0, and an nft and ebtables that are too old.
SCRIPT_TESTS := tests/static_routes/test_script.py tests/static_routes/test_differential.py tests/route_overlap/test_script.py \
	tests/route_overlap/test_expected_networks.py tests/route_overlap/test_plain.py tests/route_overlap/test_plain_fabric.py \
	tests/route_overlap/test_plain_worlds.py
TOOLS_TESTS := tests/host/test_nft.py tests/host/ebtables tests/host/test_ebtables_rules.py tests/azure/probe_snat \
	$(SCRIPT_TESTS) tests/net/test_default_route.py
tools-focal: TOOLS_TESTS := $(SCRIPT_TESTS)
tools-focal tools-bullseye tools-jammy tools-bookworm tools-noble tools-trixie: tools-%: $(VENV)/ready
	.ci/tools $* .tools/$*
	PATH="$(CURDIR)/.tools/$*/bin:$$PATH" HYPOTHESIS_PROFILE=fresh HOSTROUTING_NO_SKIP=1 $(PYTEST) -m 'not slow' $(TOOLS_TESTS)

# The tools that tests/fleet needs to try examples/fleet: 60 MB, half a minute. Without them these tests are skipped.
fleet-tools: .tools/fleet/complete
.tools/fleet/complete: .ci/fleet-tools tests/fleet/requirements.lock
	.ci/fleet-tools .tools/fleet $(PYTHON)

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/ready: requirements.lock pyproject.toml .ci/venv
	.ci/venv $(PYTHON) $(VENV)
	@touch $@

clean:
	rm -rf .venv .venv-* .nox .tools dist build .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
