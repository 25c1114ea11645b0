"""Sessions with packages of their own: `nox -s docs` builds the site."""

import shutil

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True


@nox.session
def docs(session: nox.Session) -> None:
    """Build build/site and test it; a warning is an error. It needs Python 3.11 or newer."""
    session.install("--quiet", "--no-compile", "--require-hashes", "-r", ".ci/docs.lock")
    # A page whose source is gone would stay, and one that is not built again would not repeat its
    # warnings.
    shutil.rmtree("build/site", ignore_errors=True)
    options = ("--fresh-env", "--nitpicky", "--fail-on-warning", "--keep-going", "--quiet")
    session.run("sphinx-build", *options, "docs", "build/site")
    env = {"HYPOTHESIS_PROFILE": "site", "PYTHONPATH": "."}
    session.run("pytest", "-q", "tests/test_site.py", env=env)
