"""The pods that azure-vnet has on record: in its own state, and in that of CNS (stateless mode); only read."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hostrouting.exceptions import StaleCNIError
from hostrouting.net.addresses import canonical
from hostrouting.stale_cni.forms import TUNNEL_MAC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hostrouting.host import FileStore

__all__ = ["ENDPOINTS_PATH", "STATE_PATH", "Endpoint", "apart", "parse_endpoints", "parse_state", "read_endpoints"]

STATE_PATH: Final = "/var/run/azure-vnet.json"
#: Of stateless mode.
ENDPOINTS_PATH: Final = "/var/run/azure-cns/azure-endpoints.json"


class Endpoint(NamedTuple):
    """A pod as azure-vnet's state has it; its device may be gone."""

    #: Without prefix lengths, in the kernel's spelling.
    addresses: tuple[str, ...]
    #: The host's end of its veth pair; empty where the state does not say.
    host_device: str = ""
    #: In lower case, with leading zeros; empty where the state does not say.
    mac: str = ""


def apart(endpoints: Iterable[Endpoint]) -> dict[str, list[list[Endpoint]]]:
    """The records of each device, pod by pod: those that share a hardware address are of one pod.

    So are those that share an address, unless their hardware addresses differ.

    >>> old, new = Endpoint(("10.240.0.9",), "azv1"), Endpoint(("10.240.0.10",), "azv1")
    >>> apart([old, new, new._replace(mac="aa:bb:cc:00:00:10")])["azv1"] == [
    ...     [old], [new, new._replace(mac="aa:bb:cc:00:00:10")]]
    True
    """
    pods: dict[str, list[list[Endpoint]]] = {}
    for endpoint in endpoints:
        others = pods.setdefault(endpoint.host_device, [])
        same = [pod for pod in others if any(_is_same_pod(endpoint, other) for other in pod)]
        merged = [other for pod in same for other in pod]
        pods[endpoint.host_device] = [*(pod for pod in others if pod not in same), [*merged, endpoint]]
    return pods


def _is_same_pod(one: Endpoint, other: Endpoint) -> bool:
    macs = {one.mac, other.mac} - {"", TUNNEL_MAC}
    if len(macs) > 1:
        # One that came back with its old address, say.
        return False
    return one.mac == other.mac in macs or not set(one.addresses).isdisjoint(other.addresses)


def read_endpoints(files: FileStore) -> tuple[Endpoint, ...]:
    """The endpoints in both states; none if there is none.

    `StaleCNIError` if there is a state that cannot be understood: then nobody knows which pods are alive.
    """
    return (*_read(files, STATE_PATH, parse_state), *_read(files, ENDPOINTS_PATH, parse_endpoints))


def _read(files: FileStore, path: str, parse: Callable[[bytes], tuple[Endpoint, ...]]) -> tuple[Endpoint, ...]:
    content = files.read(path)
    if content is None:
        return ()
    try:
        return parse(content)
    except ValueError as error:
        raise StaleCNIError(
            f"{path} is not the state of azure-vnet as we know it ({error}), so nobody knows which pods are "
            f"alive, and nothing was changed; if no pod of azure-vnet is left, move the file away and run this again"
        ) from error


def parse_state(content: bytes) -> tuple[Endpoint, ...]:
    """Read azure-vnet's state as Go's encoding/json writes it; ValueError says what is not as expected.

    >>> parse_state(b'''{"Network": {"ExternalInterfaces": {"eth0": {"Networks": {"azure": {"Endpoints": {
    ...     "5f0a-eth0": {"HostIfName": "azv1", "IPAddresses": [{"IP": "10.240.0.9", "Mask": "//8AAA=="}]}}}}}}}}''')
    (Endpoint(addresses=('10.240.0.9',), host_device='azv1', mac=''),)

    Go writes every one of these keys, null or empty where there is nothing: what has other keys only is another thing.
    A file of 0 bytes is a store that nothing was ever saved in.
    """
    network = _mapping(_get(_document(content), "Network", "the file"), "Network")
    return tuple(
        _endpoint(endpoint, path)
        for interface, at in _members(network, "ExternalInterfaces", "Network")
        for pods, within in _members(interface, "Networks", at)
        for endpoint, path in _members(pods, "Endpoints", within)
    )


def parse_endpoints(content: bytes) -> tuple[Endpoint, ...]:
    """Read the state of CNS, which may serve another CNI at the same time; ValueError says what is not as expected.

    >>> parse_endpoints(b'''{"Endpoints": {"0a49": {"PodName": "web-0", "PodNamespace": "default", "IfnameToIPMap": {
    ...     "eth0": {"IPv4": [{"IP": "10.240.0.9", "Mask": "//8AAA=="}], "HostVethName": "azv1"}}}}}''')
    (Endpoint(addresses=('10.240.0.9',), host_device='azv1', mac=''),)

    Only azure-vnet tells CNS a device or a hardware address. A record without both is of another CNI's pod (Cilium's,
    say), which has nothing to do with what azure-vnet made for that address.
    """
    endpoints = (
        Endpoint(
            (*_addresses(info, "IPv4", path), *_addresses(info, "IPv6", path)),
            _text(info, "HostVethName"),
            _mac(_text(info, "MacAddress")),
        )
        for pod, at in _members(_document(content), "Endpoints", "the file")
        for info, path in _members(pod, "IfnameToIPMap", at)
    )
    return tuple(endpoint for endpoint in endpoints if endpoint.host_device or endpoint.mac)


def _document(content: bytes) -> dict[str, Any]:
    """The file as an object, which is empty for a store that nothing was ever saved in."""
    if not content:
        return {}
    try:
        return _mapping(json.loads(content), "the file")
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


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
    _get(mapping, "IPAddresses", path)
    return Endpoint(
        _addresses(mapping, "IPAddresses", path),
        _text(mapping, "HostIfName"),
        _mac(_text(mapping, "MacAddress")),
    )


def _addresses(mapping: dict[str, Any], key: str, path: str) -> tuple[str, ...]:
    networks = mapping.get(key) or []
    if not isinstance(networks, list):
        raise ValueError(f"{path}.{key} is no JSON array")  # noqa: TRY004 - same
    entry = f"an entry of {path}.{key}"
    addresses = []
    for network in networks:
        if isinstance(network, str):
            # Not what Go makes of a net.IPNet, but plain enough; and whoever protects a pod is believed.
            addresses.append(network.partition("/")[0])
            continue
        members = _mapping(network, entry)
        _get(members, "IP", entry)
        addresses.append(_text(members, "IP"))
    # An address that was never set is empty text.
    return tuple(_address(address) for address in addresses if address)


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
            bytes(int(part, 16) for part in text.split(":")) if ":" in text else base64.b64decode(text, validate=True)
        )
    except ValueError as error:
        raise ValueError(f"{text!r} is no hardware address") from error
    # Those of InfiniBand are longer.
    if len(packed) not in (0, 6, 8, 20):
        raise ValueError(f"{text!r} is no hardware address")
    return packed.hex(":")
