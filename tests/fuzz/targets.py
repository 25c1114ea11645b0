"""The readers of foreign bytes: each parser and decoder, and the errors that it may raise.

A new one is a line in `TARGETS` and a folder of examples under `cases/`. A target may have several
readers of the same bytes; each has to stand them.
"""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import attrs
from fuzz import netlink_readers
from fuzz.loopback import LoopbackService

from hostrouting import HostRoutingConfig
from hostrouting.azure.probe_snat.detect import describes_ipv6
from hostrouting.azure.probe_snat.ruleset import parse
from hostrouting.azure.stale_cni import azure_vnet
from hostrouting.boot.gates import Gates, why_gates_are_open
from hostrouting.exceptions import BackendError, InvalidConfigError, UnitError
from hostrouting.fleet.stream import verdict_on
from hostrouting.host import units
from hostrouting.host.imds import InstanceMetadataClient
from hostrouting.host.packets import ebtables_rules, nft
from hostrouting.host.systemd.systemctl import Systemctl
from hostrouting.host.systemd.unit_files import UnitFiles
from hostrouting.net import addresses
from hostrouting.net.addresses import check_device_name, parse_cidr, parse_ipv4
from hostrouting.route_overlap import fabric
from hostrouting.testing import FakeHost, MemoryFiles
from hostrouting.watch.networkd import foreign_routes, networkd_texts
from phases import Context

CASES = Path(__file__).parent / "cases"
#: The seconds of processor time that one reader may take for one input of 64 KiB at most.
LONGEST = 2.0


class Target(NamedTuple):
    """Readers of one sort of bytes."""

    name: str
    readers: Sequence[Callable[[bytes], object]]
    #: All that a reader may raise; BaseException's other heirs (MemoryError, RecursionError, ...)
    #: are failures, too.
    documented: tuple[type[Exception], ...]

    def run(self, data: bytes) -> None:
        """Give each reader the bytes; an error that is not documented passes through, and so does a
        slow answer.
        """
        for read in self.readers:
            began = time.process_time()
            try:
                read(data)
            except self.documented as error:
                if not str(error).strip():
                    raise AssertionError(f"{error!r} has an empty text") from error
            taken = time.process_time() - began
            if taken > LONGEST:
                raise AssertionError(f"{self.name} took {taken:.1f} s for {len(data)} bytes")

    @property
    def folder(self) -> Path:
        """Return the folder of its inputs: valid examples, and inputs that once made a reader fail."""
        return CASES / self.name

    def cases(self) -> list[Path]:
        """The inputs that are kept."""
        return sorted(self.folder.iterdir())


# --- the config, addresses and names


def _config(data: bytes) -> None:
    config = HostRoutingConfig.from_json(data)
    # A value that was read is written and read again, or an agent that passes it on would lose a
    # part.
    assert HostRoutingConfig.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode(errors="surrogateescape"))


# --- the output of tools


@attrs.frozen
class _SaidSystemctl(Systemctl):
    """The systemctl that prints `text`, whatever its arguments are."""

    text: str = attrs.field(kw_only=True)

    def _run(self, ctx: Context, *arguments: str, advice: str = "") -> str:
        return self.text


def _systemctl_show(text: str) -> None:
    services = _SaidSystemctl(text=text)
    for read_unit in services.state, services.loaded:
        try:
            read_unit(Context(), "kubelet.service")
        except UnitError:
            continue
    gate = "systemd-nspawn@.service"
    units.seconds(services.settings(Context(), gate, "TimeoutStartSec", "After")["TimeoutStartSec"])
    Gates(services, [gate]).faults(Context())


def _ebtables_save(text: str) -> None:
    for rule in ebtables_rules.parse_save(text, backend="nft"):
        assert isinstance(rule.options, dict)


def _unit_file(data: bytes) -> None:
    text = data.decode(errors="replace")
    units.words([text], "After")
    units.seconds(units.settings([text], "TimeoutStartSec", "ExecStartPre")["TimeoutStartSec"])
    host = FakeHost()
    host.files.write("/etc/systemd/system/kubelet.service", data, mode=0o644)
    UnitFiles(host.files).ordered_before("kubelet.service")


def _networkd(files: MemoryFiles) -> None:
    foreign_routes(networkd_texts(files))


# --- files of other programs, and own ones after a change by them


def _file(path: str, read: Callable[[MemoryFiles], object]) -> Callable[[bytes], object]:
    def reader(data: bytes) -> object:
        files = MemoryFiles()
        files.write(path, data, mode=0o600)
        return read(files)

    return reader


def _fabric(files: MemoryFiles) -> None:
    """Read the fabric from these files, with whole ones in the place of those that are absent."""
    pairs = b"NUMPAIRS:1|00155D33FF1D:172.16.1.4"
    for path, content in {
        fabric.CONFIGURATION: b"OS.EnableRDMA=y\n",
        fabric.POOL: b"IPoIB_Data".ljust(512, b"\0") + pairs.ljust(2048, b"\0"),
    }.items():
        if not files.exists(path):
            files.write(path, content, mode=0o644)
    found = fabric.read_fabric(files, pause=lambda: None)
    assert all(map(str.isprintable, (found.source, *found.notes))), "a terminal may not obey a note"
    assert found.addresses or found.notes


def _describes_ipv6(data: bytes) -> None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return  # for the client to refuse
    describes_ipv6(document)


# --- the network


def _metadata(data: bytes) -> None:
    service = LoopbackService.running()
    service.answer_with(data)
    client = InstanceMetadataClient(service.endpoint)
    answer = client._ask(Context())
    assert str(answer).isprintable(), "a terminal may not obey an error message"
    if not answer.is_transient:
        client._document(answer)


def _target(
    name: str, *readers: Callable[[bytes], object], raises: Sequence[type[Exception]] = ()
) -> Target:
    return Target(name, readers, tuple(raises))


TARGETS = (
    *(
        _target(f"netlink-{name}", *readers, raises=[BackendError])
        for name, readers in netlink_readers.READERS.items()
    ),
    _target("config", _config, raises=[InvalidConfigError]),
    _target(
        "addresses",
        *(_text(read) for read in (parse_ipv4, parse_cidr, check_device_name)),
        raises=[ValueError],
    ),
    _target("networks", _text(addresses.parse_address)),
    _target("nft-json", _text(partial(nft._objects, what="list the table")), raises=[BackendError]),
    _target("ebtables-save", _text(_ebtables_save), raises=[BackendError]),
    _target(
        "ebtables-list",
        _text(lambda text: _ebtables_save(ebtables_rules.listing_to_save(text))),
        raises=[BackendError],
    ),
    _target("systemctl-show", _text(_systemctl_show), raises=[UnitError]),
    _target("unit-files", _unit_file),
    _target("networkd-conf", _file("/etc/systemd/networkd.conf.d/50-x.conf", _networkd)),
    _target("kernel-command-line", _file("/proc/cmdline", why_gates_are_open)),
    _target("azure-vnet-state", azure_vnet.parse_state, raises=[ValueError]),
    _target("azure-cns-endpoints", azure_vnet.parse_endpoints, raises=[ValueError]),
    _target("azure-vnet-locks", _file("/var/run/azure-vnet.json.lock", azure_vnet.locked)),
    _target("conflists", _file("/etc/cni/net.d/10-azure.conflist", azure_vnet.configured)),
    _target("fabric-configuration", _file(fabric.CONFIGURATION, _fabric)),
    _target("fabric-pool", _file(fabric.POOL, _fabric)),
    _target("fleet-records", lambda line: verdict_on(("", line))),
    _target("metadata-http", _metadata, raises=[BackendError]),
    _target("metadata-json", _describes_ipv6, raises=[BackendError]),
    _target("probe-rules", _text(parse)),
)
