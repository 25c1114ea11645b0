"""What azure-vnet itself has on the disk: its state, its locks, and the CNI configuration that names it. Only read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hostrouting.exceptions import StaleCNIError
from hostrouting.stale_cni.networks import canonical

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host import FileStore

__all__ = ["STATE_PATH", "Endpoint", "configured", "locked", "parse_endpoints", "read_endpoints"]

STATE_PATH: Final = "/var/run/azure-vnet.json"
_LOCKS: Final = tuple(
    f"{folder}/{name}.json.lock"
    for name in ("azure-vnet", "azure-vnet-ipam")
    for folder in ("/var/run", "/var/run/azure-vnet")
)
_CONFIGURATION: Final = "/etc/cni/net.d"
#: What container runtimes read there; a `.cilium_bak` is none of it.
_ENDINGS: Final = (".conflist", ".conf", ".json")
_PLUGINS: Final = frozenset({"azure-vnet", "azure-vnet-ipam"})
_LONGEST_PID: Final = 10


class Endpoint(NamedTuple):
    """A pod as azure-vnet's state has it; its device may be gone."""

    #: Without prefix lengths, in the kernel's spelling.
    addresses: tuple[str, ...]
    #: The host's end of its veth pair; empty where the state does not say.
    host_device: str = ""


# --- the state


def read_endpoints(files: FileStore) -> tuple[Endpoint, ...]:
    """The endpoints in azure-vnet's state; none if it has left no state.

    `StaleCNIError` if there is a state that cannot be understood: then nobody knows which pods are alive.
    """
    content = files.read(STATE_PATH)
    if content is None:
        return ()
    try:
        return parse_endpoints(content)
    except ValueError as error:
        raise StaleCNIError(
            f"{STATE_PATH} is not the state of azure-vnet as we know it ({error}), so nobody knows which pods are "
            f"alive, and nothing was changed; if no pod of azure-vnet is left, move the file away and run this again"
        ) from error


def parse_endpoints(content: bytes) -> tuple[Endpoint, ...]:
    """Read the state as Go's encoding/json writes it; ValueError says what is not as expected.

    >>> parse_endpoints(b'''{"Network": {"ExternalInterfaces": {"eth0": {"Networks": {"azure": {"Endpoints": {
    ...     "5f0a-eth0": {"HostIfName": "azv1", "IPAddresses": [{"IP": "10.240.0.9", "Mask": "//8AAA=="}]}}}}}}}}''')
    (Endpoint(addresses=('10.240.0.9',), host_device='azv1'),)
    """
    try:
        document = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    network = _mapping(_mapping(document, "the file").get("Network"), "Network")
    return tuple(
        _endpoint(endpoint)
        for interface in _members(network, "ExternalInterfaces")
        for pods in _members(interface, "Networks")
        for endpoint in _members(pods, "Endpoints")
    )


def _members(mapping: dict[str, Any], key: str) -> Iterator[dict[str, Any]]:
    for name, member in _mapping(mapping.get(key), key).items():
        yield _mapping(member, f"{key}[{name!r}]")


def _mapping(value: object, what: str) -> dict[str, Any]:
    """The object; an empty one for null, which is how Go writes a map that was never made."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no JSON object")  # noqa: TRY004 - one sort of error for all that is wrong with it
    return value


def _endpoint(mapping: dict[str, Any]) -> Endpoint:
    networks = mapping.get("IPAddresses") or []
    if not isinstance(networks, list):
        raise ValueError("IPAddresses is no JSON array")  # noqa: TRY004 - same
    addresses = [_text(_mapping(network, "an entry of IPAddresses"), "IP") for network in networks]
    return Endpoint(
        # An address that was never set is empty text.
        tuple(_address(address) for address in addresses if address),
        _text(mapping, "HostIfName"),
    )


def _text(mapping: dict[str, Any], key: str) -> str:
    value = mapping.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is no text")  # noqa: TRY004 - same
    return value


def _address(text: str) -> str:
    address = canonical(text)
    if address is None:
        raise ValueError(f"{text!r} is no address")
    return address


# --- whether it is at work


def configured(files: FileStore) -> list[str]:
    """Why azure-vnet must be taken to be in use by the container runtime: one sentence for each file that names it."""
    reasons = []
    for name in files.names(_CONFIGURATION):
        path = f"{_CONFIGURATION}/{name}"
        if not name.endswith(_ENDINGS):
            continue
        content = files.read(path) or b""
        try:
            if _names_azure_vnet(json.loads(content)):
                reasons.append(f"{path} names azure-vnet")
        except (ValueError, RecursionError):
            if b"azure-vnet" in content:
                reasons.append(f"{path} is no JSON that can be read, but has 'azure-vnet' in it")
    return reasons


def _names_azure_vnet(document: object) -> bool:
    if not isinstance(document, dict):
        return False
    plugins = document.get("plugins")
    plugins = plugins if isinstance(plugins, list) else []
    return any(_is_azure_vnet(plugin) for plugin in (document, *plugins))


def _is_azure_vnet(plugin: object) -> bool:
    if not isinstance(plugin, dict):
        return False
    ipam = plugin.get("ipam")
    types = [plugin.get("type"), ipam.get("type") if isinstance(ipam, dict) else None]
    return any(isinstance(name, str) and name in _PLUGINS for name in types)


def locked(files: FileStore) -> list[str]:
    """Why azure-vnet must be taken to be running at this moment: one sentence for each lock that is held."""
    reasons = []
    for path in _LOCKS:
        if files.is_locked(path):
            reasons.append(f"a process holds the lock {path}")
            continue
        # Older versions take no lock: that the file exists is the lock, and it has the holder's process id in it.
        pid = (files.read(path) or b"").strip()
        if pid.isdigit() and len(pid) <= _LONGEST_PID and files.exists(f"/proc/{int(pid)}"):
            reasons.append(f"process {int(pid)} holds the lock {path}")
    return reasons
