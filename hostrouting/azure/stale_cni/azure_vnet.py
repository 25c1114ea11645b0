"""Read azure-vnet's CNI configuration, its locks, and the pods in its state."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from hostrouting.base.errors import HostFileError, StaleCNIError
from hostrouting.net.addresses import Address
from hostrouting.net.mappings import typed_or_null

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host import FileStore

STATE_PATH: Final = "/var/run/azure-vnet.json"
#: The state of CNS, which stateless mode uses.
ENDPOINTS_PATH: Final = "/var/run/azure-cns/azure-endpoints.json"
#: The prefix of the host side of pods' veth pairs.
POD_DEVICE: Final = "azv"
#: The fabric router's address. azure-vnet gives it to every pod in tunnel mode, ip-masq-agent to
#: other nodes.
TUNNEL_MAC: Final = "12:34:56:78:9a:bc"

#: The locks of azure-vnet and of its IPAM plugin; their names differ between versions.
_LOCKS = (
    "/var/run/azure-vnet.json.lock",
    "/var/run/azure-vnet.lock",
    "/var/run/azure-vnet-ipam.json.lock",
    "/var/run/azure-vnet-ipam.lock",
    "/var/run/azure-vnet/azure-vnet.json.lock",
    "/var/run/azure-vnet/azure-vnet.lock",
    "/var/run/azure-vnet/azure-vnet-ipam.json.lock",
    "/var/run/azure-vnet/azure-vnet-ipam.lock",
)
#: The directory of the locks since version 1.4.5.
_LOCK_FOLDER = "/var/lock/azure-vnet"
_CONFIGURATION = "/etc/cni/net.d"
#: Container runtimes read only these names; they ignore a `.cilium_bak`.
_SUFFIXES = (".conflist", ".conf", ".json")
#: The common prefix of its programs: azure-vnet, azure-vnet-ipam, azure-vnet-telemetry.
_PLUGIN = "azure-vnet"
_LONGEST_PID = 10

T = TypeVar("T")


# --- is it in use?


def in_use(files: FileStore) -> str | None:
    """Return why azure-vnet may still be adding rules, or None."""
    signs = [*configured(files), *locked(files)]
    return f"azure-vnet is still in use: {'; '.join(signs)}" if signs else None


def configured(files: FileStore) -> list[str]:
    """Return a reason for each CNI configuration that may call azure-vnet."""
    names = [name for name in files.names(_CONFIGURATION) if name.endswith(_SUFFIXES)]
    reasons = (_why_configured(files, f"{_CONFIGURATION}/{name}") for name in names)
    return list(filter(None, reasons))


def _why_configured(files: FileStore, path: str) -> str | None:
    try:
        content = files.read(path) or b""
    except HostFileError as error:
        # A directory or a circular link, for example; the runtime may still be able to read it.
        words = str(error).removeprefix(f"cannot read {path}: ")
        return f"{path} cannot be read ({words}); move it away if no container runtime uses it"
    kinds: list[object] = []
    try:
        # At any depth, because plugins such as Multus nest others.
        json.loads(content, object_hook=lambda plugin: kinds.append(plugin.get("type")))
    except (ValueError, RecursionError):
        is_named = _PLUGIN.encode() in content
        return f"{path} is not valid JSON and contains 'azure-vnet'" if is_named else None
    programs = (kind.rstrip("/").rpartition("/")[2] for kind in kinds if isinstance(kind, str))
    is_named = any(program.startswith(_PLUGIN) for program in programs)
    return f"{path} names azure-vnet" if is_named else None


def locked(files: FileStore) -> list[str]:
    """Return a reason for each lock of azure-vnet that a process holds."""
    reasons = []
    # CNS always runs and may serve the new CNI.
    of_cns = ("azure-cns", "azure-endpoints")
    own = (
        name
        for name in files.names(_LOCK_FOLDER)
        if name.endswith(".lock") and not name.startswith(of_cns)
    )
    for path in (*_LOCKS, *(f"{_LOCK_FOLDER}/{name}" for name in own)):
        if files.is_locked(path):
            reasons.append(f"a process holds the lock {path}")
            continue
        # In older versions the lock is the existence of the file, which contains the process id.
        pid = (files.read(path) or b"").strip()
        if pid.isdigit() and len(pid) <= _LONGEST_PID and files.exists(f"/proc/{int(pid)}"):
            reasons.append(f"process {int(pid)} holds the lock {path}")
    return reasons


# --- the pods in its state


class Endpoint(NamedTuple):
    """A pod in azure-vnet's state; its device may no longer exist."""

    #: Without prefix lengths, as the kernel formats them.
    addresses: tuple[str, ...]
    #: The host side of its veth pair; empty if the state does not name it.
    host_device: str = ""
    #: In lower case, with leading zeros; empty if the state does not give it.
    mac: str = ""

    def __str__(self) -> str:
        return f"the record of {self.host_device or 'a pod without a device'}"


def read_endpoints(files: FileStore) -> tuple[Endpoint, ...]:
    """Return the endpoints in both states; raise StaleCNIError if one cannot be parsed."""
    endpoints: list[Endpoint] = []
    for path, parse in ((STATE_PATH, parse_state), (ENDPOINTS_PATH, parse_endpoints)):
        content = files.read(path)
        if not content:
            # A file of 0 bytes is an empty store.
            continue
        try:
            endpoints += parse(content)
        except ValueError as error:
            raise StaleCNIError(
                f"cannot read azure-vnet's state in {path}: {error}. Without it, running pods "
                f"cannot be told from deleted ones, so nothing was changed; if no pod of "
                f"azure-vnet is left, move the file away and run this again"
            ) from error
    return tuple(endpoints)


def parse_state(content: bytes) -> tuple[Endpoint, ...]:
    """Parse azure-vnet's state as Go's encoding/json writes it; otherwise raise ValueError.

    >>> parse_state(b'''{"Network": {"ExternalInterfaces": {"eth0": {"Networks": {"azure": {
    ...     "Endpoints": {"5f0a-eth0": {
    ...         "HostIfName": "azv1", "IPAddresses": [{"IP": "10.240.0.9"}]}}}}}}}}''')
    (Endpoint(addresses=('10.240.0.9',), host_device='azv1', mac=''),)

    Go always writes these keys, with null or an empty value if there is nothing, so an object
    without them is another document.
    """
    network = _member(_document(content), "Network", dict, "the file")
    infos = _leaves(network, "the file.Network", "ExternalInterfaces", "Networks", "Endpoints")
    return tuple(_endpoint(info, path, "HostIfName", "IPAddresses") for info, path in infos)


def parse_endpoints(content: bytes) -> tuple[Endpoint, ...]:
    """Parse the state of CNS; raise ValueError if it is not valid.

    >>> parse_endpoints(b'''{"Endpoints": {"0a49": {"PodName": "web-0", "IfnameToIPMap": {
    ...     "eth0": {"IPv4": [{"IP": "10.240.0.9"}], "HostVethName": "azv1"}}}}}''')
    (Endpoint(addresses=('10.240.0.9',), host_device='azv1', mac=''),)

    CNS may serve another CNI, such as Cilium. Only azure-vnet passes it devices and hardware
    addresses, so endpoints without both belong to another CNI and are left out.
    """
    endpoints = (
        _endpoint({"IPv4": [], "IPv6": [], **info}, path, "HostVethName", "IPv4", "IPv6")
        for info, path in _leaves(_document(content), "the file", "Endpoints", "IfnameToIPMap")
    )
    return tuple(endpoint for endpoint in endpoints if endpoint.host_device or endpoint.mac)


def _document(content: bytes) -> dict[str, Any]:
    try:
        return typed_or_null(json.loads(content), dict, "the file")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _leaves(
    mapping: dict[str, Any], path: str, key: str, *keys: str
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each object that is nested in objects under the keys, with its path."""
    for name, value in _member(mapping, key, dict, path).items():
        at = f"{path}.{key}[{name!r}]"
        member = typed_or_null(value, dict, at)
        yield from _leaves(member, at, *keys) if keys else ((member, at),)


def _member(mapping: dict[str, Any], key: str, kind: type[T], path: str) -> T:
    # An empty object stands for Go's null.
    if mapping and key not in mapping:
        raise ValueError(f"{path} has no {key}")
    return typed_or_null(mapping.get(key), kind, f"{path}.{key}")


def _endpoint(mapping: dict[str, Any], path: str, device: str, *keys: str) -> Endpoint:
    addresses: list[str] = []
    for key in keys:
        at = f"an entry of {path}.{key}"
        for network in _member(mapping, key, list, path):
            text = _member(typed_or_null(network, dict, at), "IP", str, at)
            # An address that was never set is an empty string.
            if text:
                addresses.append(_address(text))
    return Endpoint(
        tuple(addresses),
        typed_or_null(mapping.get(device), str, device),
        _mac(typed_or_null(mapping.get("MacAddress"), str, "MacAddress")),
    )


def _address(text: str) -> str:
    address = str(Address.parse(text))
    # An IPv4-mapped IPv6 address is the IPv4 address.
    return address.removeprefix("::ffff:") if "." in address else address


def _mac(text: str) -> str:
    """Return a hardware address in the kernel's format, from base64 (as in Go) or with colons."""
    with suppress(ValueError):
        packed = (
            bytes(int(part, 16) for part in text.split(":"))
            if ":" in text
            else base64.b64decode(text, validate=True)
        )
        # None, Ethernet, EUI-64, InfiniBand.
        if len(packed) in {0, 6, 8, 20}:
            return packed.hex(":")
    raise ValueError(f"{text!r} is not a hardware address")
