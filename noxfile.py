"""All sessions that are no part of the Makefile's front: `.venv/bin/nox --list`.

A session runs in the environment that nox itself is in, unless its docstring names another one.
`make .venv/ready` makes that environment from requirements.lock.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True
nox.options.sessions = ["lint", "types"]

ROOT = Path(__file__).parent
BIN = Path(sys.executable).parent
DIST = ROOT / "dist"
PROJECT = ROOT / "pyproject.toml"
WHEEL_BIN = ROOT / ".venv-wheel/bin"
#: The supported Pythons of this machine, the oldest first.
PYTHONS = dict(
    line.split()
    for line in subprocess.run(
        [ROOT / ".ci/pythons"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
)
#: The same as words of a command.
PAIRS = [word for pair in PYTHONS.items() for word in pair]
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHER_PYTHONS = [version for version in list(PYTHONS)[1:] if version != HERE]
#: As in the Makefile, which says why.
PARALLEL = ("-n", "4", "--dist", "worksteal")
#: Contracts, boot scripts and the sweep (with real legacy ebtables). What needs no kernel is left
#: out.
KERNEL_TESTS = [
    "tests/test_kernel_facts.py",
    "tests/test_ipv6_facts.py",
    "tests/fib/test_short_histories.py",
    "tests/testing/test_kernel_equivalence.py",
    "tests/host/test_route_backends.py",
    "tests/host/test_network_events.py",
    "tests/host/test_cached_routing.py",
    "tests/host/test_link_layer.py",
    "tests/host/test_ipv6.py",
    "tests/host/test_nft.py",
    "tests/host/ebtables/test_ebtables.py",
    "tests/static_routes/test_script.py",
    "tests/static_routes/test_differential.py",
    "tests/route_overlap/test_announced.py",
    "tests/route_overlap/test_changes_meanwhile.py",
    "tests/route_overlap/test_vrf.py",
    "tests/route_overlap/test_judged_worlds.py",
    "tests/azure/stale_cni/test_kernel.py",
]
WITHOUT_IPV6_TESTS = [
    "tests/static_routes/test_script.py",
    "tests/route_overlap/test_vrf.py",
]
#: Tests of the command that load four fifths of the modules of the single file. A Python compiles
#: its own copies of them.
PYZ_TESTS = ["tests/cli/test_cli.py", "tests/cli/test_commands.py"]
#: The tests that install and run the files of dist/.
DIST_TESTS = [
    "tests/release/test_dist.py",
    "tests/release/test_packages.py::test_lintian_finds_no_error",
    "tests/release/test_packages.py::test_a_package_is_installed_upgraded_and_removed",
]
#: The tests that call bash and ip, and those that call nft and ebtables, too.
SCRIPT_TESTS = [
    "tests/static_routes/test_script.py",
    "tests/static_routes/test_differential.py",
    "tests/route_overlap/test_expected_networks.py",
    "tests/route_overlap/test_judged_worlds.py",
]
TOOLS_TESTS = [
    "tests/host/test_nft.py",
    "tests/host/ebtables",
    "tests/host/test_ebtables_rules.py",
    "tests/azure/probe_snat",
    "tests/net/test_default_route.py",
]


def _run(session: nox.Session, *words: str | Path, **env: str) -> None:
    """Run a program of the environment of nox, or of this machine."""
    here = BIN / words[0]
    program = here if here.exists() else words[0]
    # Without compiled files each process of a test run compiles its tests and packages again.
    changes = {"PYTHONDONTWRITEBYTECODE": None, **env}
    session.run(program, *words[1:], env=changes, external=True)


def _pytest(session: nox.Session, profile: str, *words: str | Path, **env: str) -> None:
    # Not `python -m pytest`, which would add this folder to the path and so hide a wheel.
    _run(session, "pytest", *PARALLEL, *words, HYPOTHESIS_PROFILE=profile, **env)


def _install(session: nox.Session, lock: str) -> None:
    session.install("--quiet", "--no-compile", "--require-hashes", "-r", lock)


def _environment(session: nox.Session, name: str, python: str) -> Path:
    """Return the programs of an environment with requirements.lock and the project for a Python."""
    venv = f".venv-{name}"
    make = ("make", "--no-print-directory", f"{venv}/ready", f"VENV={venv}", f"PYTHON={python}")
    session.run(*make, external=True)
    return ROOT / venv / "bin"


def _build_wheel(session: nox.Session) -> None:
    """Build the wheel and install it into .venv-wheel, which has the newest Python."""
    folder = ROOT / "build/wheel"
    shutil.rmtree(folder, ignore_errors=True)
    _run(session, "hatchling", "build", "-t", "wheel", "-d", folder)
    (wheel,) = folder.iterdir()
    _run(session, ".ci/venv", list(PYTHONS.values())[-1], ".venv-wheel", wheel)


# What each change must pass.


@nox.session(python=False)
def lint(session: nox.Session) -> None:
    """Check the style, the imports between packages, and the scripts."""
    _run(session, "ruff", "check", ".")
    _run(session, "ruff", "format", "--check", ".")
    _run(session, "lint-imports")
    scripts = [path for path in Path(".ci").iterdir() if path.suffix != ".lock"]
    # Those that begin with another name are parts of scripts.
    scripts += Path("hostrouting/boot/assets").glob("hostrouting-*.sh")
    scripts += [*Path("tests/support").glob("*.sh"), *Path("examples/fleet/npd").glob("*.sh")]
    _run(session, "shellcheck", *sorted(scripts))


@nox.session(python=False)
def types(session: nox.Session) -> None:
    """Check the types of the packages, and of all that is written around them."""
    _run(session, "mypy")
    folders = ("tests", "benchmarks", "examples", "release")
    _run(session, "mypy", "--config-file", "pyproject.toml", *folders)


@nox.session
def public_types(session: nox.Session) -> None:
    """Let pyright find the types of 99 % of the public names of the wheel; its own environment."""
    _install(session, ".ci/pyright.lock")
    _build_wheel(session)
    # pyright finds the packages by the first Python on PATH, where nox puts that of the session.
    path = os.pathsep.join([str(WHEEL_BIN), os.environ["PATH"]])
    pyright = f"{session.bin}/pyright"
    session.run("env", f"PATH={path}", ".ci/public-types", pyright, external=True)


@nox.session
def workflows(session: nox.Session) -> None:
    """Check the workflows, in an environment of its own, which needs Python 3.11 or newer."""
    _install(session, ".ci/workflows.lock")
    files = sorted(str(path) for path in Path(".github/workflows").iterdir())
    # Its form, and an end for each job.
    for schema in "vendor.github-workflows", "custom.github-workflows-require-timeout":
        session.run("check-jsonschema", "--builtin-schema", schema, *files)
    dependabot = ("--builtin-schema", "vendor.dependabot", ".github/dependabot.yml")
    session.run("check-jsonschema", *dependabot)
    session.run("zizmor", "--offline", "--quiet", "--persona", "pedantic", ".github")


@nox.session
def docs(session: nox.Session) -> None:
    """Build build/site and test it; its own environment, which needs Python 3.11 or newer."""
    _install(session, ".ci/docs.lock")
    # A page whose source is gone would stay, and one that is not built again would not repeat its
    # warnings.
    shutil.rmtree("build/site", ignore_errors=True)
    options = ("--fresh-env", "--nitpicky", "--fail-on-warning", "--keep-going", "--quiet")
    session.run("sphinx-build", *options, "docs", "build/site")
    env = {"HYPOTHESIS_PROFILE": "site", "PYTHONPATH": "."}
    session.run("pytest", "-q", "tests/test_site.py", env=env)


@nox.session(python=False)
def tests(session: nox.Session) -> None:
    """Run all tests, the slow ones, too, with more examples of the property tests."""
    _pytest(session, "check", *session.posargs)


@nox.session(python=False)
def unprivileged(session: nox.Session) -> None:
    """Run all tests that need neither root nor namespaces, with few examples."""
    _pytest(session, "quick", "-q")


@nox.session(python=False, tags=["night"])
@nox.parametrize("version", [nox.param(version, id=version) for version in OTHER_PYTHONS])
def pythons(session: nox.Session, version: str) -> None:
    """Do so on each other Python, in an environment of its own.

    For each change `oldest` takes the oldest one, and `wheel` the newest.
    """
    pytest = _environment(session, version, PYTHONS[version]) / "pytest"
    _run(session, pytest, *PARALLEL, "-q", HYPOTHESIS_PROFILE="quick", HOSTROUTING_NO_SKIP="")


@nox.session(python=False)
def oldest(session: nox.Session) -> None:
    """Do so with the oldest Python, attrs and pyroute2, and try the backends on the kernel."""
    programs = _environment(session, "oldest", next(iter(PYTHONS.values())))
    options = ("-qq", "--disable-pip-version-check", "--require-hashes", "--no-deps")
    _run(session, programs / "pip", "install", *options, "-r", ".ci/oldest.lock")
    backends = ("tests/host/test_route_backends.py", "tests/host/test_pyroute_socket.py")
    for profile, files in ("quick", ()), ("again", backends):
        words = (programs / "pytest", *PARALLEL, "-q", *files)
        _run(session, *words, HYPOTHESIS_PROFILE=profile, HOSTROUTING_NO_SKIP="")


@nox.session(python=False)
def wheel(session: nox.Session) -> None:
    """Build the wheel; run `unprivileged` with it, on the newest Python: all modules and files."""
    _build_wheel(session)
    words = (WHEEL_BIN / "pytest", *PARALLEL, "-q")
    _run(session, *words, HYPOTHESIS_PROFILE="quick", HOSTROUTING_NO_SKIP="")
    _run(session, WHEEL_BIN / "hostrouting", "--version")


@nox.session(python=False)
def coverage(session: nox.Session) -> None:
    """Measure statements and branches that all tests run, in child processes and machines, too."""
    # Every process writes a file into one folder: those without a right to write elsewhere, too.
    data = ROOT / ".coverage-data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    data.chmod(0o1777)
    env = {"COVERAGE_FILE": str(data / "of"), "HYPOTHESIS_PROFILE": "again"}
    _run(session, "coverage", "run", "-m", "pytest", *PARALLEL, *session.posargs, **env)
    _run(session, "coverage", "combine", "-q", **env)
    # A part of the tests covers a part of the code.
    part = ("--fail-under=0",) if session.posargs else ()
    _run(session, "coverage", "report", *part, **env)


# The files of a release, and those that programs write.


@nox.session
def sbom(session: nox.Session) -> None:
    """Write release/hostrouting.cdx.json, what users of the wheel install; its own environment."""
    _install(session, ".ci/sbom.lock")
    folder = ROOT / "build/sbom"
    session.run("python", "-m", "venv", "--clear", "--without-pip", folder)
    pip = ("pip", "--quiet", "--disable-pip-version-check", "--python", folder / "bin/python")
    session.run(*pip, "install", "--no-deps", "--require-hashes", "-r", ".ci/users.lock")
    # The tool reads no version that a build backend finds.
    version = str(session.run(BIN / "hatchling", "version", external=True, silent=True)).strip()
    project = re.sub("(?m)^dynamic = .*$", f'version = "{version}"', PROJECT.read_text())
    (folder / PROJECT.name).write_text(project)
    options = ("--pyproject", folder / PROJECT.name, "--output-reproducible", "--output-file")
    bill = "release/hostrouting.cdx.json"
    session.run("cyclonedx-py", "environment", *options, bill, folder)


@nox.session(python=False)
def pyz(session: nox.Session) -> None:
    """Build the single file; run the tests of the command with it, all of them on one Python."""
    file = ROOT / "build/hostrouting.pyz"
    _run(session, "python", "release/pyz.py", file, *PAIRS)
    commands = [f"{python} -I {file}" for python in PYTHONS.values()]
    for command in commands[1:]:
        _pytest(session, "quick", "-q", *PYZ_TESTS, HOSTROUTING_COMMAND=command)
    _pytest(session, "quick", "-q", "tests/cli", HOSTROUTING_COMMAND=commands[0])
    words = ("-q", "tests/cli/test_node.py")
    _pytest(session, "default", *words, HOSTROUTING_COMMAND=commands[0])


@nox.session(python=False)
def dist(session: nox.Session) -> None:
    """Build all files of a release in dist/, and install and run each: `make dist`."""
    _run(session, "python", "release/dist.py", DIST, *PAIRS)
    # In one process, as they share the minimal Debian.
    _run(session, "pytest", "-q", *DIST_TESTS, HYPOTHESIS_PROFILE="dist")


@nox.session(python=False)
def reference(session: nox.Session) -> None:
    """Write what comes from the code: the reference, schemas, pictures, tests/public_api.txt."""
    for program in "reference", "pictures", "api":
        _run(session, "python", f"release/{program}.py")


@nox.session(python=False)
def fleet_tools(session: nox.Session) -> None:
    """Get the tools that tests/fleet needs to try examples/fleet: 60 MB, half a minute."""
    complete = ROOT / ".tools/fleet/complete"
    sources = (ROOT / ".ci/fleet-tools", ROOT / "tests/fleet/requirements.lock")
    if not complete.exists() or any(
        path.stat().st_mtime > complete.stat().st_mtime for path in sources
    ):
        _run(session, ".ci/fleet-tools", ".tools/fleet", sys.executable)


# What the night runs. `nox -t night` is all of it.


@nox.session(python=False, tags=["night"])
def soak(session: nox.Session) -> None:
    """Run all tests, the property tests with thousands of examples and a random seed."""
    _pytest(session, "soak", "-o", "faulthandler_timeout=7200")


@nox.session(python=False, tags=["night"])
def matrix(session: nox.Session) -> None:
    """Boot each cell of docs/apply-matrix.md twice; `-- write` writes the page anew."""
    part = session.posargs[0] if session.posargs else "all"
    _pytest(session, "default", "tests/system/test_matrix.py", HOSTROUTING_MATRIX=part)


@nox.session(python=False, tags=["night"])
@nox.parametrize(
    "suite",
    [nox.param(suite, id=suite) for suite in ("bullseye", "jammy", "bookworm", "noble", "trixie")],
)
def kernel(session: nox.Session, suite: str) -> None:
    """Test what needs a kernel under those of three Debians and two Ubuntus; needs root."""
    options = ("-p", "no:cacheprovider", "-k", "not Memory and not TestFiles")
    pytest = (BIN / "pytest", *PARALLEL, *options, *KERNEL_TESTS)
    # The other kernel begins with an empty environment.
    env = ("env", "HYPOTHESIS_PROFILE=kernel", "HOSTROUTING_NO_SKIP=1")
    _run(session, ".ci/kernel", *env, *pytest, KERNEL_SUITE=suite)


@nox.session(python=False, tags=["night"])
def kernel_without_ipv6(session: nox.Session) -> None:
    """Test boot scripts under the kernel of Debian 12 with ipv6.disable=1; needs root."""
    pytest = (BIN / "pytest", *PARALLEL, "-p", "no:cacheprovider", *WITHOUT_IPV6_TESTS)
    words = (".ci/kernel", "env", "HYPOTHESIS_PROFILE=kernel", *pytest)
    _run(session, *words, KERNEL_OPTIONS="ipv6.disable=1")


@nox.session(python=False, tags=["night"])
@nox.parametrize(
    "suite",
    [
        nox.param(suite, id=suite)
        for suite in ("focal", "bullseye", "jammy", "bookworm", "noble", "trixie")
    ],
)
def tools(session: nox.Session, suite: str) -> None:
    """Test what calls bash, nft, ebtables or ip with those of another Debian or Ubuntu."""
    _run(session, ".ci/tools", suite, f".tools/{suite}")
    # focal has bash 5.0, and an nft and ebtables that are too old.
    files = SCRIPT_TESTS if suite == "focal" else TOOLS_TESTS + SCRIPT_TESTS
    path = os.pathsep.join([str(ROOT / f".tools/{suite}/bin"), os.environ["PATH"]])
    _pytest(session, "default", "-m", "not slow", *files, PATH=path, HOSTROUTING_NO_SKIP="1")


@nox.session(python=False, tags=["night"])
def fresh_trixie(session: nox.Session) -> None:
    """Run make demo, make test and all tests on a minimal Debian 13; .ci/run does so on 12."""
    _run(session, ".ci/fresh", "trixie")


@nox.session(python=False, tags=["night"])
def fuzz(session: nox.Session) -> None:
    """Try every parser and decoder for a quarter of an hour, or as `-- --seconds 60` says.

    Failing inputs are stored in tests/fuzz/cases. The fuzzer is big, and not every Python has a
    wheel of it.
    """
    options = ("-qq", "--disable-pip-version-check", "--require-hashes", "--only-binary", ":all:")
    words = (BIN / "pip", "install", *options, "-r", "tests/fuzz/requirements.lock")
    session.run(*words, external=True, success_codes=[0, 1])
    words = ("python", "tests/fuzz/run.py", *(session.posargs or ("--seconds", "900")))
    _run(session, *words)


@nox.session(python=False, tags=["night"])
def mutants(session: nox.Session) -> None:
    """Make each mistake of tests/mutants alone in a copy of the code: a test must fail.

    `-- --package fib` tries those of one package, and `-- --since origin/main --minutes 10` those
    that a change must pass.
    """
    _run(session, "python", "tests/mutants/run.py", *session.posargs)
