"""The address that the kubelet announces (`--node-ip`), compared with the outbound device."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hostrouting.base.errors import HostFileError
from hostrouting.base.findings import NodeFinding
from hostrouting.net.addresses import Address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostrouting.host import FileStore
    from hostrouting.net.links import Device

#: The names of programs that are or contain a kubelet, as the kernel shows them.
_PROGRAMS: Final = frozenset({b"kubelet", b"k3s", b"k3s-server", b"k3s-agent", b"rke2"})
#: The kernel truncates longer names.
_LONGEST_NAME: Final = 16
#: The options for its next start: those of packages, kubeadm, k3s and RKE2.
_FILES: Final = (
    "/etc/default/kubelet",
    "/etc/sysconfig/kubelet",
    "/var/lib/kubelet/kubeadm-flags.env",
    "/etc/rancher/k3s/config.yaml",
    "/etc/rancher/rke2/config.yaml",
)
_NODE_IP: Final = re.compile(
    rb"(?:--node-ip[= \0]|^\s*node-ip:\s*)[\"']?([0-9a-fA-F.:,]+)", re.MULTILINE
)


def off_outbound_device(
    files: FileStore, links: Sequence[Device], exits: Mapping[int, str]
) -> Iterator[NodeFinding]:
    """Yield a note for each node IP that is not on the outbound device of its family.

    A node IP that no device has belongs to a kubelet in another network namespace, or is a mistake
    that the kubelet reports itself.
    """
    devs = {own.address: link.name for link in links for own in link.addresses}
    for address, place in _node_ips(files).items():
        dev, way = devs.get(address), exits.get(address.family)
        if dev is not None and way is not None and dev != way:
            reason = (
                f"is on {dev}, through which its requests come, and the answers leave through {way}"
            )
            step = f"see {place}; if {way} is the right device, use one of its addresses"
            yield NodeFinding(
                "node-ip", f"--node-ip={address} of the kubelet", reason, "note", step
            )


def _node_ips(files: FileStore) -> dict[Address, str]:
    """Return each node IP, and the command line or file that contains it."""
    found: dict[Address, str] = {}
    for path in (*_command_lines(files), *_FILES):
        for text in _given(files, path):
            with suppress(ValueError):
                found.setdefault(Address.parse(text), path)
    return found


def _given(files: FileStore, path: str) -> Iterator[str]:
    """Yield the values of --node-ip in a command line or file."""
    # A process may have ended meanwhile, and other users may not read everything.
    with suppress(HostFileError):
        for values in _NODE_IP.findall(files.read(path) or b""):
            yield from values.decode().split(",")


def _command_lines(files: FileStore) -> Iterator[str]:
    """Yield the path of the first kubelet's command line: a node has only one kubelet."""
    for name in files.names("/proc"):
        if not name.isdigit():
            continue
        with suppress(HostFileError):
            if (files.read(f"/proc/{name}/comm", limit=_LONGEST_NAME) or b"").strip() in _PROGRAMS:
                yield f"/proc/{name}/cmdline"
                return
