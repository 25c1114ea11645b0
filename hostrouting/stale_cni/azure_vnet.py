"""What azure-vnet itself has on the disk: its state, its locks, and the CNI configuration that names it. Only read."""

from __future__ import annotations

import binascii
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hostrouting.exceptions import HostFileError, StaleCNIError
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
#: How its programs' names begin: azure-vnet, azure-vnet-ipam, azure-vnet-telemetry.
_PLUGIN: Final = "azure-vnet"
_LONGEST_PID: Final = 10


class Endpoint(NamedTuple):
    """A pod as azure-vnet's state has it; its device may be gone."""

    #: Without prefix lengths, in the kernel's spelling.
    addresses: tuple[str, ...]
    #: The host's end of its veth pair; empty where the state does not say.
    host_device: str = ""
    #: In lower case, with leading zeros; empty where the state does not say.
    mac: str = ""


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
    (Endpoint(addresses=('10.240.0.9',), host_device='azv1', mac=''),)

    Go writes every one of these keys, null or empty where there is nothing: what has other keys only is another thing.
    A file of 0 bytes is a store that nothing was ever saved in.
    """
    if not content:
        return ()
    try:
        document = json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    network = _mapping(_get(_mapping(document, "the file"), "Network", "the file"), "Network")
    return tuple(
        _endpoint(endpoint, path)
        for interface, at in _members(network, "ExternalInterfaces", "Network")
        for pods, within in _members(interface, "Networks", at)
        for endpoint, path in _members(pods, "Endpoints", within)
    )


def _members(mapping: dict[str, Any], key: str, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Each object in the object that stands under the key, and its path."""
    here = f"{path}.{key}"
    for name, member in _mapping(_get(mapping, key, path), here).items():
        yield _mapping(member, f"{here}[{name!r}]"), f"{here}[{name!r}]"


def _get(mapping: dict[str, Any], key: str, path: str) -> object:
    """The value; None if the object is empty, which is how Go's null comes here."""
    if mapping and key not in mapping:
        raise ValueError(f"{path} has no {key}")
    return mapping.get(key)


def _mapping(value: object, what: str) -> dict[str, Any]:
    """The object; an empty one for null, which is how Go writes a map that was never made."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no JSON object")  # noqa: TRY004 - one sort of error for all that is wrong with it
    return value


def _endpoint(mapping: dict[str, Any], path: str) -> Endpoint:
    networks = _get(mapping, "IPAddresses", path) or []
    if not isinstance(networks, list):
        raise ValueError(f"{path}.IPAddresses is no JSON array")  # noqa: TRY004 - same
    entry = f"an entry of {path}.IPAddresses"
    addresses = []
    for network in networks:
        if isinstance(network, str):
            # Not what Go makes of a net.IPNet, but plain enough; and whoever protects a pod is believed.
            addresses.append(network.partition("/")[0])
            continue
        members = _mapping(network, entry)
        _get(members, "IP", entry)
        addresses.append(_text(members, "IP"))
    return Endpoint(
        # An address that was never set is empty text.
        tuple(_address(address) for address in addresses if address),
        _text(mapping, "HostIfName"),
        _mac(_text(mapping, "MacAddress")),
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
    # An IPv4 address in IPv6's clothes is the IPv4 address.
    return address.removeprefix("::ffff:") if "." in address else address


def _mac(text: str) -> str:
    """Go writes a hardware address as it does all bytes, in base64; people write it with colons."""
    try:
        packed = (
            bytes(int(part, 16) for part in text.split(":"))
            if ":" in text
            else binascii.a2b_base64(text, strict_mode=True)
        )
    except ValueError as error:
        raise ValueError(f"{text!r} is no hardware address") from error
    # Those of InfiniBand are longer.
    if len(packed) not in (0, 6, 8, 20):
        raise ValueError(f"{text!r} is no hardware address")
    return packed.hex(":")


# --- whether it is at work


def configured(files: FileStore) -> list[str]:
    """Why azure-vnet must be taken to be in use by the container runtime: one sentence for each file that names it."""
    paths = [f"{_CONFIGURATION}/{name}" for name in files.names(_CONFIGURATION) if name.endswith(_ENDINGS)]
    return [reason for path in paths if (reason := _why_configured(files, path))]


def _why_configured(files: FileStore, path: str) -> str | None:
    try:
        content = files.read(path) or b""
    except HostFileError as error:
        # A folder, or a link that leads to itself: what a runtime makes of it nobody knows.
        words = str(error).removeprefix(f"cannot read {path}: ")
        return f"{path} cannot be read ({words}); move it away if no container runtime uses it"
    try:
        return f"{path} names azure-vnet" if _names_azure_vnet(json.loads(content)) else None
    except (ValueError, RecursionError):
        if _PLUGIN.encode() in content:
            return f"{path} is no JSON that can be read, but has 'azure-vnet' in it"
    return None


def _names_azure_vnet(document: object) -> bool:
    """Whether a `type` is one of its programs, at any depth: some plugins (multus) call others that they name there."""
    if isinstance(document, list):
        return any(map(_names_azure_vnet, document))
    if not isinstance(document, dict):
        return False
    kind = document.get("type")
    if isinstance(kind, str) and kind.rstrip("/").rpartition("/")[2].startswith(_PLUGIN):
        return True
    return any(map(_names_azure_vnet, document.values()))


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
