"""Build the packages for Debian and for distributions with rpm, with dpkg-deb and rpmbuild.

    SOURCE_DATE_EPOCH=SECONDS python release/packages.py FOLDER [VERSION PYTHON]...

Both contain the same files and scripts. An installation restarts a running watch, since its process
has the modules of an earlier one. A removal does not change a configured node, and prints how to
reset it.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from email.utils import formatdate
from pathlib import Path

import tree

from hostrouting import __version__

_MAINTAINER = "The hostrouting authors <noreply@github.com>"
_HOME = "https://github.com/hostrouting/hostrouting"
_SUMMARY = "fixes and checks the routes of Kubernetes nodes"
_DESCRIPTION = """\
hostrouting fixes a Kubernetes node's routes before the node joins its
cluster, repairs them at every boot, and checks that cluster traffic leaves
through the right device. If it does not, hostrouting can hold the kubelet
or any other unit. While the node runs, it can restore lost routes."""
#: True if this node has a watch that runs the command of the package.
_WATCHED = (
    "grep -qs '^ExecStart=/usr/bin/hostrouting ' /etc/systemd/system/hostrouting-watch.service"
)
_INSTALLED = f"""\
    # A running watch has the modules of the replaced or removed file. Do not wait for the restart:
    # its first reading waits for another run, which may be the one that installs the package.
    if [ -d /run/systemd/system ] && {_WATCHED}; then
        systemctl --no-block try-restart hostrouting-watch.service || true
    fi"""
_REMOVED = f"""\
    if [ -e /etc/aks-flex-node/hostrouting.json ]; then
        echo "hostrouting: this node keeps the routes, scripts, units and gates of hostrouting."
        echo "hostrouting: To remove them, install the package again,"
        echo "hostrouting: and run 'hostrouting reset' before you remove it."
        if {_WATCHED}; then
            echo "hostrouting: hostrouting-watch.service runs on, and cannot start again."
        fi
    fi"""
_CONTROL = """\
Package: hostrouting
Version: {version}-1
Section: net
Priority: optional
Architecture: all
Maintainer: {maintainer}
Installed-Size: {kilobytes}
Depends: python3 (>= 3.10), iproute2
Recommends: systemd
Suggests: nftables, ebtables
Homepage: {home}
Description: {summary}
{description}
"""
_CHANGES = """\
hostrouting ({version}-1) unstable; urgency=medium

  * See changelog.gz.

 -- {maintainer}  {date}
"""
_SPEC = """\
Name: hostrouting
Version: {version}
Release: 1
Summary: {summary}
License: MIT
URL: {home}
BuildArch: noarch
Requires: python3 >= 3.10, iproute, bash
Recommends: systemd
Suggests: nftables
AutoReqProv: no

%description
{description}

%install
cp -a {tree}/. %{{buildroot}}

%post
{installed}

%preun
if [ "$1" = 0 ]; then
{removed}
fi

%files
{files}
"""


def deb(files: Path, output: Path, *, time: int) -> None:
    """Build the package for Debian and Ubuntu of the files below a folder."""
    changes = _CHANGES.format(version=__version__, maintainer=_MAINTAINER, date=formatdate(time))
    documents = files / "usr/share/doc/hostrouting"
    (documents / "changelog.Debian.gz").write_bytes(gzip.compress(changes.encode(), mtime=0))
    control = files / "DEBIAN"
    control.mkdir(mode=0o755)
    paths = [path for path in sorted(files.rglob("*")) if path.is_file()]
    digests = [hashlib.md5(path.read_bytes()).hexdigest() for path in paths]  # noqa: S324
    sums = [f"{md5}  {path.relative_to(files)}\n" for md5, path in zip(digests, paths, strict=True)]
    values = {
        "version": __version__,
        "kilobytes": sum(-(-path.stat().st_size // 1024) for path in paths),
        "maintainer": _MAINTAINER,
        "home": _HOME,
        "summary": _SUMMARY,
        "description": "\n".join(f" {line}" for line in _DESCRIPTION.splitlines()),
    }
    (control / "control").write_text(_CONTROL.format(**values))
    (control / "md5sums").write_text("".join(sums))
    _script(control / "postinst", '[ "$1" = configure ]', _INSTALLED)
    _script(control / "prerm", '[ "$1" = remove ]', _REMOVED)
    words = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(files), str(output)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def _script(path: Path, condition: str, action: str) -> None:
    path.write_text(f"#!/bin/sh\nset -e\nif {condition}; then\n{action}\nfi\n")
    path.chmod(0o755)


def rpm(files: Path, output: Path, *, time: int) -> None:
    """Build the package for distributions with rpm of the files below a folder."""
    zsh = files / "usr/share/zsh"
    (zsh / "vendor-completions").rename(zsh / "site-functions")
    documents = files / "usr/share/doc/hostrouting"
    listed = (path for path in files.rglob("*") if path.is_file() and documents not in path.parents)
    # A folder in the list belongs to the package, and is removed with it.
    paths = sorted(f"/{path.relative_to(files)}" for path in (documents, *listed))
    with tempfile.TemporaryDirectory() as top:
        values = {
            "version": __version__,
            "home": _HOME,
            "summary": _SUMMARY,
            "description": _DESCRIPTION,
            "tree": files,
        }
        spec = Path(top, "hostrouting.spec")
        spec.write_text(
            _SPEC.format(**values, installed=_INSTALLED, removed=_REMOVED, files="\n".join(paths))
        )
        settings = {
            "_topdir": top,
            "_rpmdir": output.parent.absolute(),
            "_rpmfilename": output.name,
            "_buildhost": "localhost",
            "_build_id_links": "none",
            "clamp_mtime_to_source_date_epoch": "1",
            "use_source_date_epoch_as_buildtime": "1",
            # As old rpm reads it, too.
            "_binary_payload": "w6.xzdio",
            "__os_install_post": "%{nil}",
        }
        words = [
            word for name, value in settings.items() for word in ("--define", f"{name} {value}")
        ]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time)}
        subprocess.run(
            ["rpmbuild", "-bb", "--quiet", *words, str(spec)], check=True, env=environment
        )


#: Each kind of package: its function, its name, and the needed program with Debian's package of it.
_KINDS = (
    (deb, f"hostrouting_{__version__}-1_all.deb", "dpkg-deb", "dpkg"),
    (rpm, f"hostrouting-{__version__}-1.noarch.rpm", "rpmbuild", "rpm"),
)


def main() -> None:
    """Build both packages, or none."""
    missing = [
        f"{name} needs {program} (Debian: apt-get install {package})"
        for _, name, program, package in _KINDS
        if shutil.which(program) is None
    ]
    if missing:
        sys.exit("\n".join(["no package was built:", *missing]))
    # It gives the modes of the control files and of the top folder.
    os.umask(0o022)
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    time = int(os.environ["SOURCE_DATE_EPOCH"])
    pythons = dict(zip(words[::2], words[1::2], strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    # A build that fails, for example on a full disk, leaves nothing that looks like a package.
    with tempfile.TemporaryDirectory(dir=folder) as built:
        for build, name, *_ in _KINDS:
            with tempfile.TemporaryDirectory() as temporary:
                files = Path(temporary, "files")
                tree.build(files, pythons, time=time)
                build(files, Path(built, name), time=time)
        for path in Path(built).iterdir():
            path.replace(folder / path.name)


if __name__ == "__main__":
    main()
