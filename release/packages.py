"""Build dist/hostrouting_VERSION-1_all.deb and dist/hostrouting-VERSION-1.noarch.rpm, with dpkg-deb and rpmbuild.

    SOURCE_DATE_EPOCH=SECONDS python release/packages.py FOLDER [VERSION PYTHON]...

Both hold the same files, and the same scripts: an installation restarts a watch that runs, since its process has the
modules of an earlier one; and a removal leaves a configured node as it is, and says how to reset it.
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
_SUMMARY = "makes a Kubernetes node's host routing right, and proves it"
_DESCRIPTION = """\
hostrouting corrects the static routes of a node before the node joins its
cluster, for every boot, and proves that the addresses of pods and of the
cloud leave by the right device. If they do not, it can keep the node's
services from starting. It can keep all of that right while the node runs."""
#: Whether the watch of this node, if it has one, runs the command of the package.
_WATCHED = "grep -qs '^ExecStart=/usr/bin/hostrouting ' /etc/systemd/system/hostrouting-watch.service"
_INSTALLED = f"""\
    # A watch that runs has the modules of the file that was replaced, or removed before. The restart is not waited for:
    # its first look waits for another run, which may be the one that installs the package.
    if [ -d /run/systemd/system ] && {_WATCHED}; then
        systemctl --no-block try-restart hostrouting-watch.service || true
    fi"""
_REMOVED = f"""\
    if [ -e /etc/aks-flex-node/hostrouting.json ]; then
        echo "hostrouting: this node keeps the routes, scripts, units and gates that hostrouting installed. To remove"
        echo "hostrouting: them, install the package again, and run 'hostrouting reset' before you remove it."
        if {_WATCHED}; then
            echo "hostrouting: hostrouting-watch.service runs on, and cannot start again without the package."
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
Homepage: https://github.com/Azure/AKSFlexNode
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
URL: https://github.com/Azure/AKSFlexNode
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
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(files)}\n" for path in paths]  # noqa: S324
    values = {
        "version": __version__,
        "kilobytes": sum(-(-path.stat().st_size // 1024) for path in paths),
        "maintainer": _MAINTAINER,
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
    paths = sorted(f"/{path.relative_to(files)}" for path in files.rglob("*") if path.is_file())
    with tempfile.TemporaryDirectory() as top:
        values = {"version": __version__, "summary": _SUMMARY, "description": _DESCRIPTION, "tree": files}
        spec = Path(top, "hostrouting.spec")
        spec.write_text(_SPEC.format(**values, installed=_INSTALLED, removed=_REMOVED, files="\n".join(paths)))
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
        words = [word for name, value in settings.items() for word in ("--define", f"{name} {value}")]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time)}
        subprocess.run(["rpmbuild", "-bb", "--quiet", *words, str(spec)], check=True, env=environment)


if __name__ == "__main__":
    if missing := [program for program in ("dpkg-deb", "rpmbuild") if shutil.which(program) is None]:
        sys.exit(f"there is no program {' and no '.join(missing)}, which the packages need (Debian: dpkg, rpm)")
    # The modes of the control files and of the uppermost folder come from it.
    os.umask(0o022)
    folder, *words = sys.argv[1:]
    pythons, time = dict(zip(words[::2], words[1::2], strict=True)), int(os.environ["SOURCE_DATE_EPOCH"])
    Path(folder).mkdir(parents=True, exist_ok=True)
    # A build that fails, for example on a full disk, leaves nothing that looks like a package.
    with tempfile.TemporaryDirectory(dir=folder) as built:
        for build, name in ((deb, "_{}-1_all.deb"), (rpm, "-{}-1.noarch.rpm")):
            with tempfile.TemporaryDirectory() as temporary:
                files = Path(temporary, "files")
                tree.build(files, pythons, time=time)
                build(files, Path(built, f"hostrouting{name.format(__version__)}"), time=time)
        for package in Path(built).iterdir():
            package.replace(Path(folder, package.name))
