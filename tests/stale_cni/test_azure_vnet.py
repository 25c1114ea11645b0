"""azure-vnet's state, its locks, and the configuration that names it."""

from __future__ import annotations

import json
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stale_cni_worlds import state_of

from hostrouting.exceptions import StaleCNIError
from hostrouting.stale_cni.azure_vnet import STATE_PATH, Endpoint, configured, locked, parse_endpoints, read_endpoints
from hostrouting.testing import MemoryFiles


def written(path: str, content: bytes | str) -> MemoryFiles:
    files = MemoryFiles()
    files.tree.write(path, content.encode() if isinstance(content, str) else content, mode=0o644)
    return files


# --- the state


def test_endpoints_are_read() -> None:
    """Each pod with its addresses of both families, compressed, and the host's end of its veth pair."""
    content = state_of({"azv1": ["10.240.0.9", "FD00:10:240::0:9"], "azv2": ["10.240.0.10"]})
    assert parse_endpoints(content) == (
        Endpoint(("10.240.0.9", "fd00:10:240::9"), "azv1"),
        Endpoint(("10.240.0.10",), "azv2"),
    )


def test_without_a_state_there_are_no_endpoints() -> None:
    """A removed azure-vnet has often taken its state with it."""
    assert read_endpoints(MemoryFiles()) == ()


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "null",
        '{"IPAM": {}}',
        '{"Network": null}',
        '{"Network": {"ExternalInterfaces": null}}',
        '{"Network": {"ExternalInterfaces": {}}}',
        '{"Network": {"ExternalInterfaces": {"eth0": {"Networks": null}}}}',
        '{"Network": {"ExternalInterfaces": {"eth0": {"Networks": {"azure": {"Endpoints": {}}}}}}}',
        '{"Network": {"ExternalInterfaces": {"eth0": null}}}',
    ],
)
def test_a_state_without_pods_has_no_endpoints(content: str) -> None:
    """A map that was never made is null in Go's JSON."""
    assert parse_endpoints(content.encode()) == ()


def test_what_an_endpoint_does_not_say_is_empty() -> None:
    """An endpoint need not have addresses or a device; an address that was never set is empty text."""
    endpoints = {"a": {}, "b": {"IPAddresses": None, "HostIfName": None}, "c": {"IPAddresses": [{"IP": ""}]}, "d": None}
    networks = {"azure": {"Endpoints": endpoints}}
    content = json.dumps({"Network": {"ExternalInterfaces": {"eth0": {"Networks": networks}}}})
    assert parse_endpoints(content.encode()) == (Endpoint(()),) * 4


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"[]", "the file is no JSON object"),
        (b'{"Network": []}', "Network is no JSON object"),
        (b'{"Network": {"ExternalInterfaces": "eth0"}}', "ExternalInterfaces is no JSON object"),
        (b'{"Network": {"ExternalInterfaces": {"eth0": 1}}}', "ExternalInterfaces['eth0'] is no JSON object"),
        (state_of({"azv1": ["10.240.0"]}), "'10.240.0' is no address"),
        (state_of({"azv1": ["10.240.0.9"]}).replace(b'"azv1"', b"1"), "HostIfName is no text"),
        (state_of({"azv1": ["10.240.0.9"]}).replace(b'"10.240.0.9"', b"9"), "IP is no text"),
        (
            re.sub(rb'"IPAddresses": \[.*?\]', b'"IPAddresses": "x"', state_of({"a": []})),
            "IPAddresses is no JSON array",
        ),
        (
            re.sub(rb'"IPAddresses": \[.*?\]', b'"IPAddresses": ["x"]', state_of({"a": []})),
            "an entry of IPAddresses is no",
        ),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"\xff\xfe\xfa", "'utf-16-le' codec can't decode"),
    ],
)
def test_a_state_that_is_not_understood_is_refused(content: bytes, reason: str) -> None:
    """Then nobody knows who is alive: the error names the file, what is wrong with it, and the way out."""
    with pytest.raises(StaleCNIError) as caught:
        read_endpoints(written(STATE_PATH, content))
    text = str(caught.value)
    assert text.startswith(f"{STATE_PATH} is not the state of azure-vnet as we know it ({reason}")
    assert text.endswith("if no pod of azure-vnet is left, move the file away and run this again")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["Network", "ExternalInterfaces", "Networks", "Endpoints", "IPAddresses", "IP", "HostIfName"]
                ),
                inner,
            )
        ),
    )
)
def test_no_state_is_a_foreign_error(document: object) -> None:
    """Any JSON is either understood or refused by an error of ours."""
    with suppress(StaleCNIError):
        read_endpoints(written(STATE_PATH, json.dumps(document)))


# --- the configuration


@pytest.mark.parametrize(
    "document",
    [
        {"name": "azure", "plugins": [{"type": "azure-vnet", "mode": "bridge"}, {"type": "portmap"}]},
        {"name": "azure", "type": "azure-vnet"},
        {"type": "bridge", "ipam": {"type": "azure-vnet-ipam"}},
        {"plugins": [{"type": "portmap"}, {"type": "bridge", "ipam": {"type": "azure-vnet-ipam"}}]},
    ],
)
@pytest.mark.parametrize("name", ["10-azure.conflist", "10-azure.conf", "azure.json"])
def test_a_configuration_that_names_azure_vnet_is_found(document: object, name: str) -> None:
    """By itself, in a list of plugins, or as the one that gives out addresses."""
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
        ("empty.conf", ""),
        ("odd.conf", '{"type": ["azure-vnet"], "plugins": "azure-vnet", "ipam": 3}'),
        ("odd.conf", "[]"),
        ("odd.conf", '{"plugins": [3, null, {"type": null}]}'),
    ],
)
def test_other_configurations_are_none(name: str, content: str) -> None:
    """Another CNI, a file that no runtime reads, and what is not of the right shape."""
    assert configured(written(f"/etc/cni/net.d/{name}", content)) == []


def test_without_the_folder_nothing_is_configured() -> None:
    """A node need not have a CNI at all."""
    assert configured(MemoryFiles()) == []


@pytest.mark.parametrize("content", [b'{"type": "azure-vnet",', b"\xff azure-vnet", b"[" * 100_000 + b"azure-vnet"])
def test_a_broken_file_that_has_its_name_in_it_counts(content: bytes) -> None:
    """Perhaps it is being written at this moment: the cautious answer is yes, and it says so."""
    path = "/etc/cni/net.d/10-azure.conflist"
    assert configured(written(path, content)) == [f"{path} is no JSON that can be read, but has 'azure-vnet' in it"]


# --- the locks

LOCKS = [
    "/var/run/azure-vnet.json.lock",
    "/var/run/azure-vnet/azure-vnet.json.lock",
    "/var/run/azure-vnet-ipam.json.lock",
    "/var/run/azure-vnet/azure-vnet-ipam.json.lock",
]


@pytest.mark.parametrize("path", LOCKS)
def test_a_lock_that_a_process_holds_is_found(path: str) -> None:
    """Newer versions lock the file, whatever is in it."""
    files = written(path, "")
    files.tree.locked.add(path)
    assert locked(files) == [f"a process holds the lock {path}"]


@pytest.mark.parametrize("path", LOCKS)
def test_a_lock_file_of_a_living_process_is_found(path: str) -> None:
    """For older versions the file is the lock, and its content the process id of who holds it."""
    files = written(path, "4711\n")
    files.tree.make_directory("/proc/4711")
    assert locked(files) == [f"process 4711 holds the lock {path}"]


@pytest.mark.parametrize("content", ["", "4711", "-1", "no number", "1/../1", "9" * 400, "٤٧"])
def test_a_lock_file_that_was_left_behind_holds_nothing(content: str) -> None:
    """Its process is gone, or what stands there is none."""
    assert locked(written(LOCKS[0], content)) == []


def test_without_lock_files_nothing_is_locked() -> None:
    """As on most nodes."""
    assert locked(MemoryFiles()) == []
