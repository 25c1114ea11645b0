"""azure-vnet's state, its locks, and the configuration that names it."""

import json
import re
from collections.abc import Mapping, Sequence

import pytest
from support.printed import FOLDER
from support.stale_cni_worlds import TUNNEL_MAC, state_of

from hostrouting.azure.stale_cni.azure_vnet import (
    ENDPOINTS_PATH,
    STATE_PATH,
    Endpoint,
    configured,
    locked,
    parse_endpoints,
    parse_state,
    read_endpoints,
)
from hostrouting.exceptions import StaleCNIError
from hostrouting.testing import MemoryFiles


def cns_state_of(endpoints: Mapping[str, Sequence[str]]) -> bytes:
    """The state that CNS keeps in stateless mode, with one endpoint for each device; another CNI's
    have none.
    """
    records = {
        f"{number:064x}": {
            "PodName": f"pod-{number}",
            "PodNamespace": "default",
            "IfnameToIPMap": {
                "eth0": {
                    "IPv4": [
                        {"IP": address, "Mask": "/////w=="}
                        for address in addresses
                        if ":" not in address
                    ],
                    "IPv6": [
                        {"IP": address, "Mask": None} for address in addresses if ":" in address
                    ]
                    or None,
                    "HostVethName": device,
                    "MacAddress": "",
                    "NICType": "InfraNIC",
                }
            },
        }
        for number, (device, addresses) in enumerate(endpoints.items())
    }
    return json.dumps({"Endpoints": records}).encode()


def written(path: str, content: bytes | str) -> MemoryFiles:
    files = MemoryFiles()
    files.tree.write(path, content.encode() if isinstance(content, str) else content, mode=0o644)
    return files


# --- the state


def test_endpoints_are_read() -> None:
    """Each pod of the state is read with its compressed addresses of both families, its hardware
    address and the host's veth device.
    """
    content = state_of({"azv1": ["10.240.0.9", "FD00:10:240::0:9"], "azv2": ["10.240.0.10"]})
    assert parse_state(content) == (
        Endpoint(("10.240.0.9", "fd00:10:240::9"), "azv1", TUNNEL_MAC),
        Endpoint(("10.240.0.10",), "azv2", TUNNEL_MAC),
    )


def test_without_a_state_there_are_no_endpoints() -> None:
    """An absent or empty state has no endpoints, as a removed azure-vnet has often taken its state
    with it.
    """
    assert read_endpoints(MemoryFiles()) == ()
    assert (
        read_endpoints(written(STATE_PATH, b""))
        == read_endpoints(written(ENDPOINTS_PATH, b""))
        == ()
    )


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "null",
        '{"Network": {}}',
        '{"Network": {"Version": "v1.4.39", "TimeStamp": "2023-05-01T00:00:00Z", "ExternalInterfaces": {}}}',
        '{"Network": null}',
        '{"Network": {"ExternalInterfaces": null}}',
        '{"Network": {"ExternalInterfaces": {"eth0": {"Networks": null}}}}',
        '{"Network": {"ExternalInterfaces": {"eth0": {"Networks": {"azure": {"Endpoints": {}}}}}}}',
        '{"Network": {"ExternalInterfaces": {"eth0": null}}}',
    ],
)
def test_a_state_without_pods_has_no_endpoints(content: str) -> None:
    """A state whose maps are empty or null, as Go writes one that was never made, has no
    endpoints.
    """
    assert parse_state(content.encode()) == ()


def test_missing_fields_of_an_endpoint_are_empty() -> None:
    """An endpoint without addresses or a device is read with empty fields."""
    nothing = {"IPAddresses": None, "HostIfName": None, "MacAddress": None}
    endpoints = {
        "a": {},
        "b": nothing,
        "c": {"IPAddresses": [{"IP": "", "Mask": None}], "MacAddress": ""},
        "d": None,
    }
    networks = {"azure": {"Endpoints": endpoints}}
    content = json.dumps({"Network": {"ExternalInterfaces": {"eth0": {"Networks": networks}}}})
    assert parse_state(content.encode()) == (Endpoint(()),) * 4


@pytest.mark.parametrize("address", ["::ffff:10.240.0.33", "::FFFF:0AF0:21", "10.240.0.33"])
def test_an_ipv4_address_in_the_clothes_of_ipv6_is_one(address: str) -> None:
    """An IPv4-mapped IPv6 address is the address of the IPv4 pod."""
    (endpoint,) = parse_state(state_of({"azv1": [address]}))
    assert endpoint.addresses == ("10.240.0.33",)


@pytest.mark.parametrize("text", ["qrvMAAAJ", "aa:bb:cc:00:00:09", "AA:BB:CC:0:0:9"])
def test_hardware_addresses_are_read_in_both_forms(text: str) -> None:
    """A hardware address is read in base64, as Go writes it, and with colons, as later versions or
    people may.
    """
    (endpoint,) = parse_state(state_of({"azv1": []}).replace(b"EjRWeJq8", text.encode()))
    assert endpoint.mac == "aa:bb:cc:00:00:09"


def test_hardware_addresses_of_infiniband_are_longer() -> None:
    """A hardware address of 20 bytes is read as any other."""
    (endpoint,) = parse_state(state_of({"azv1": []}).replace(b"EjRWeJq8", b"AAAA" * 6 + b"AAk="))
    assert endpoint.mac == ":".join(["00"] * 19 + ["09"])


IN_NETWORKS = "the file.Network.ExternalInterfaces['eth0'].Networks['azure']"
IN_ENDPOINTS = f"{IN_NETWORKS}.Endpoints['00000000-eth0']"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b" ", "Expecting value: line 1 column 2 (char 1)"),
        (b"[]", "the file should be an object, not list"),
        (
            b'{"Network": {"ExternalInterfaces": {"eth0": 1}}}',
            "the file.Network.ExternalInterfaces['eth0'] should be an object, not int",
        ),
        (state_of({"azv1": ["10.240.0"]}), "'10.240.0' is not "),
        (
            state_of({"azv1": ["10.240.0.9"]}).replace(b'"azv1"', b"1"),
            "HostIfName should be text, not int",
        ),
        (
            re.sub(rb'"IPAddresses": \[.*?\]', b'"IPAddresses": "x"', state_of({"a": []})),
            f"{IN_ENDPOINTS}.IPAddresses should be a list, not str",
        ),
        (
            re.sub(rb'"IPAddresses": \[.*?\]', b'"IPAddresses": [7]', state_of({"a": []})),
            f"an entry of {IN_ENDPOINTS}.IPAddresses should be an object, not int",
        ),
        (b'{"foo": 1}', "the file has no Network"),
        (b'{"Network": {"Version": "v2"}}', "the file.Network has no ExternalInterfaces"),
        (
            b'{"Network": {"ExternalInterfaces": {"eth0": {"Name": "eth0"}}}}',
            "the file.Network.ExternalInterfaces['eth0'] has no Networks",
        ),
        (
            state_of({"a": []}).replace(b'"Endpoints"', b'"endpoints"'),
            f"{IN_NETWORKS} has no Endpoints",
        ),
        (
            state_of({"a": []}).replace(b'"IPAddresses"', b'"IPs"'),
            f"{IN_ENDPOINTS} has no IPAddresses",
        ),
        (
            state_of({"a": ["::1"]}).replace(b'"IP"', b'"Ip"'),
            f"an entry of {IN_ENDPOINTS}.IPAddresses has no IP",
        ),
        (state_of({"a": []}).replace(b'"EjRWeJq8"', b"7"), "MacAddress should be text, not int"),
        *(
            (
                state_of({"a": []}).replace(b"EjRWeJq8", text),
                f"'{text.decode()}' is not a hardware address",
            )
            for text in (
                b"EjRW",
                b"EjRWeJq",
                b"no",
                b"aa:bb:cc:00:00",
                b"aa:bb:cc:00:00:100",
                b"aa:bb:cc:00:00:xx",
            )
        ),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"\xff\xfe\xfa", "'utf-16-le' codec can't decode"),
    ],
)
def test_a_state_that_is_not_understood_is_refused(content: bytes, reason: str) -> None:
    """A state that cannot be understood is refused, since live pods could not be distinguished; the
    error names the file, the fault and the next step.
    """
    with pytest.raises(StaleCNIError) as caught:
        read_endpoints(written(STATE_PATH, content))
    text = str(caught.value)
    assert text.startswith(f"cannot read azure-vnet's state in {STATE_PATH}: {reason}")
    assert text.endswith("if no pod of azure-vnet is left, move the file away and run this again")


# --- the configuration


@pytest.mark.parametrize(
    "document",
    [
        {
            "name": "azure",
            "plugins": [{"type": "azure-vnet", "mode": "bridge"}, {"type": "portmap"}],
        },
        {"name": "azure", "type": "azure-vnet"},
        {"type": "bridge", "ipam": {"type": "azure-vnet-ipam"}},
        {"plugins": [{"type": "portmap"}, {"type": "bridge", "ipam": {"type": "azure-vnet-ipam"}}]},
        {"type": "multus", "delegates": [{"name": "azure", "plugins": [{"type": "azure-vnet"}]}]},
        [{"type": "portmap"}, {"type": "azure-vnet"}],
        {"plugins": {"azure": {"type": "azure-vnet"}}},
        {"type": "/opt/cni/bin/azure-vnet"},
        {"type": "azure-vnet/"},
        {"type": "azure-vnet-swift"},
    ],
)
@pytest.mark.parametrize("name", ["10-azure.conflist", "10-azure.conf", "azure.json"])
def test_a_configuration_that_names_azure_vnet_is_found(document: object, name: str) -> None:
    """A configuration of azure-vnet is found alone, in a list of plugins, as the IPAM plugin,
    within another plugin, and by path.
    """
    assert configured(written(f"/etc/cni/net.d/{name}", json.dumps(document))) == [
        f"/etc/cni/net.d/{name} names azure-vnet"
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("05-cilium.conflist", '{"name": "cilium", "plugins": [{"type": "cilium-cni"}]}'),
        ("05-cilium.conflist", '{"name": "azure-vnet", "plugins": [{"type": "cilium-cni"}]}'),
        ("10-azure.conflist.cilium_bak", '{"type": "azure-vnet"}'),
        ("10-azure.conflist.disabled", '{"type": "azure-vnet"}'),
        ("10-other.conf", '{"type": "/opt/azure-vnet/bridge"}'),
        ("10-other.conf", '{"type": "my-azure-vnet"}'),
        ("empty.conf", ""),
        ("odd.conf", '{"type": ["azure-vnet"], "plugins": "azure-vnet", "ipam": 3}'),
        ("odd.conf", "[]"),
        ("odd.conf", '{"plugins": [3, null, {"type": null}]}'),
    ],
)
def test_other_configurations_are_none(name: str, content: str) -> None:
    """A configuration of another CNI, a file that no runtime reads, and values of another shape do
    not count as azure-vnet.
    """
    assert configured(written(f"/etc/cni/net.d/{name}", content)) == []


@pytest.mark.parametrize(
    "content", [b'{"type": "azure-vnet",', b"\xff azure-vnet", b"[" * 100_000 + b"azure-vnet"]
)
def test_a_broken_file_that_has_its_name_in_it_counts(content: bytes) -> None:
    """A broken configuration that contains the name of azure-vnet counts, with that reason, as
    perhaps a program is writing it at this moment.
    """
    path = "/etc/cni/net.d/10-azure.conflist"
    assert configured(written(path, content)) == [
        f"{path} is not valid JSON and contains 'azure-vnet'"
    ]


def test_a_configuration_of_any_depth_is_found() -> None:
    """A configuration that is nested too deeply to be searched counts if it contains the name of
    azure-vnet.
    """
    nested = '{"a": ' * 900 + '{"type": "azure-vnet"}' + "}" * 900
    (reason,) = configured(written("/etc/cni/net.d/10-deep.conf", nested))
    assert "azure-vnet" in reason


def test_an_unreadable_file_counts_and_has_a_reason() -> None:
    """An unreadable configuration, such as a folder, counts, with its reason, as the runtime may
    read it in some way.
    """
    files = written("/etc/cni/net.d/10-azure.conflist", '{"type": "azure-vnet"}')
    files.tree.make_directory("/etc/cni/net.d/x.conflist")
    assert configured(files) == [
        "/etc/cni/net.d/10-azure.conflist names azure-vnet",
        f"/etc/cni/net.d/x.conflist cannot be read ({FOLDER}); move it away if no container runtime uses it",
    ]


# --- the locks


@pytest.mark.parametrize("content", ["", "4711", "-1", "no number", "1/../1", "9" * 400, "٤٧"])
def test_a_stale_lock_file_holds_nothing(content: str) -> None:
    """A lock file whose process is gone, or whose content is not a process id, does not count as
    held.
    """
    assert locked(written("/var/run/azure-vnet.json.lock", content)) == []


# --- the state of CNS


def test_endpoints_of_stateless_mode_are_read() -> None:
    """Endpoints of stateless mode are read from the state of CNS, with both families, the veth, and
    the hardware address.
    """
    content = b"""{"Endpoints": {"0a49": {"PodName": "web-0", "PodNamespace": "default", "IfnameToIPMap": {"eth0": {
        "IPv4": [{"IP": "10.240.0.9", "Mask": "//8AAA=="}], "IPv6": [{"IP": "FD00:10:240::9", "Mask": ""}],
        "HostVethName": "azv1", "MacAddress": "AA:BB:CC:00:00:09", "NICType": "InfraNIC"}}}}}"""
    expected = (Endpoint(("10.240.0.9", "fd00:10:240::9"), "azv1", "aa:bb:cc:00:00:09"),)
    assert parse_endpoints(content) == expected
    files = written(ENDPOINTS_PATH, content)
    files.tree.write(STATE_PATH, state_of({"azv2": ["10.240.0.10"]}), mode=0o600)
    assert read_endpoints(files) == (Endpoint(("10.240.0.10",), "azv2", TUNNEL_MAC), *expected)


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"null",
        b'{"Endpoints": null}',
        b'{"Endpoints": {}}',
        b'{"Endpoints": {"0a": null}}',
        b'{"Endpoints": {"0a": {"IfnameToIPMap": null}}}',
        b'{"Endpoints": {"0a": {"IfnameToIPMap": {"eth0": null}}}}',
    ],
)
def test_cns_without_pods_has_no_endpoints(content: bytes) -> None:
    """A state of CNS without pods, or with null for values that were never set, has no
    endpoints.
    """
    assert parse_endpoints(content) == ()


def test_pods_of_another_cni_that_uses_cns_are_none_of_azure_vnets() -> None:
    """Records of CNS without a device, as of Cilium's pods, are not endpoints of azure-vnet."""
    assert parse_endpoints(cns_state_of({"": ["10.240.0.9"], "azv1": ["10.240.0.10"]})) == (
        Endpoint(("10.240.0.10",), "azv1"),
    )


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[]", "the file should be an object, not list"),
        (b'{"ContainerNetworkService": {}}', "the file has no Endpoints"),
        (b'{"Endpoints": []}', "the file.Endpoints should be an object, not list"),
        (
            b'{"Endpoints": {"0a": {"PodName": "x"}}}',
            "the file.Endpoints['0a'] has no IfnameToIPMap",
        ),
        (
            b'{"Endpoints": {"0a": {"IfnameToIPMap": {"eth0": {"IPv4": "10.0.0.1"}}}}}',
            "the file.Endpoints['0a'].IfnameToIPMap['eth0'].IPv4 should be a list, not str",
        ),
        (
            b'{"Endpoints": {"0a": {"IfnameToIPMap": {"eth0": {"IPv4": [{"IP": "x"}]}}}}}',
            "'x' is not ",
        ),
        (
            b'{"Endpoints": {"0a": {"IfnameToIPMap": {"eth0": {"MacAddress": "x:y"}}}}}',
            "'x:y' is not a hardware address",
        ),
        (b'{"Endpoints": ' * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_not_the_state_of_cns_is_an_error(content: bytes, reason: str) -> None:
    """A file that is not the state of CNS is an error that names the place of the fault."""
    with pytest.raises(ValueError, match=r".") as caught:
        parse_endpoints(content)
    assert reason in str(caught.value)
