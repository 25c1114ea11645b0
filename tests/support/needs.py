"""The needs of tests on the machine that they run on: one table, and one sentence for each reason
to skip.

`@needs("kernel", "nft")` marks a test, `require("systemd")` is for fixtures and helpers. The name
of a need decides its place: in `_THINGS`, as a file, or as a program on PATH. Most tests need only
the kernel: `@needs_kernel` of support.kernel, or the fixture of the same
name.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

#: Debian's package for each program or file that a minimal system lacks.
PACKAGES = {
    "/lib/systemd/system/systemd-nspawn@.service": "systemd-container",
    "/lib/systemd/systemd": "systemd",
    "bash": "bash",
    "debootstrap": "debootstrap",
    "ebtables-legacy": "ebtables",
    "ebtables-nft": "iptables",
    "ebtables-save": "iptables",
    "dpkg-deb": "dpkg",
    "ip": "iproute2",
    "lintian": "lintian",
    "nft": "nftables",
    "nsenter": "util-linux",
    "rpmbuild": "rpm",
    "setpriv": "util-linux",
    "strace": "strace",
    "sysctl": "procps",
    "systemctl": "systemd",
    "systemd-analyze": "systemd",
    "systemd-path": "systemd",
    "tc": "iproute2",
}
#: Installed by `nox -s fleet_tools`, and by no package.
_FLEET_TOOLS = frozenset(
    {
        "ansible-playbook",
        "buildah",
        "cloud-init",
        "fleet-python",
        "kubernetes-validate",
        "prometheus-node-exporter",
        "promtool",
    }
)


def _root() -> str | None:
    return None if os.geteuid() == 0 else "needs root"


def _kernel() -> str | None:
    """Return why a test cannot have a network namespace and its tools."""
    if lacking := _root() or missing("ip", "nsenter", "bash", "sysctl"):
        return lacking
    # The root of a container may lack the right to make one, or the kernel a type of device. This
    # is the essence of `KernelNode.made` and `add_link`.
    trial = "ip link add trial type ifb; echo 0 > /proc/sys/net/ipv4/conf/all/promote_secondaries"
    return _failure("network namespaces cannot be made here", trial)


def _failure(sentence: str, trial: str) -> str | None:
    """Return the sentence and the words of a failure of bash in a new namespace, or None."""
    words = ["unshare", "--net", "--mount", "bash", "-ec", trial]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    return f"{sentence}: {done.stderr.strip()}" if done.returncode else None


def _systemd() -> str | None:
    """Return why there can be no throw-away machine with a network for the installed systemd:
    `SystemdBox`.
    """
    return missing("/lib/systemd/systemd", "kernel")


def _box() -> str | None:
    """Return why there can be no `SystemdBox`. A tree of another distribution was made for the
    purpose, and is complete.
    """
    return missing("kernel" if os.environ.get("HOSTROUTING_BOX_ROOT", "/") != "/" else "systemd")


def _device(kind: str) -> str | None:
    """Return why there can be no device of a type that not every kernel has."""
    trial = f"ip link add trial type {kind} {'table 9' if kind == 'vrf' else ''}"
    return _failure(f"needs a kernel with devices of type {kind}", trial)


def _nspawn() -> str | None:
    return missing("systemd", "/lib/systemd/system/systemd-nspawn@.service")


#: Needs that are more than a program or a file: each function returns why it cannot be met, or
#: None.
_THINGS: dict[str, Callable[[], str | None]] = {
    "box": _box,
    "dummy": partial(_device, "dummy"),
    "kernel": _kernel,
    "nspawn": _nspawn,
    "root": _root,
    "systemd": _systemd,
    "vrf": partial(_device, "vrf"),
}


@cache
def missing(*things: str) -> str | None:
    """Return why a test that needs all these things cannot run here, or None."""
    return next((reason for reason in map(_reason, things) if reason is not None), None)


def needs(*things: str) -> pytest.MarkDecorator:
    """Mark a test, or a class of tests, to be skipped unless the machine has all these things."""
    return pytest.mark.skipif(missing(*things) is not None, reason=str(missing(*things)))


def require(*things: str) -> None:
    """Skip the running test unless the machine has all these things."""
    reason = missing(*things)
    if reason is not None:
        pytest.skip(reason)


def _reason(thing: str) -> str | None:
    if thing in _THINGS:
        return (
            "is left to `make test`"
            if os.environ.get("HYPOTHESIS_PROFILE") == "quick"
            else _THINGS[thing]()
        )
    way = (
        "nox -s fleet_tools"
        if thing in _FLEET_TOOLS
        else f"Debian: apt-get install {PACKAGES[thing]}"
    )
    here = Path(thing).exists() if thing.startswith("/") else shutil.which(thing) is not None
    return None if here else f"needs `{thing}` ({way})"
