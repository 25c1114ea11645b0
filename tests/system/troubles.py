"""Troubles of a node while a config is applied, and the promised outcome of each."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import attrs
from support.printed import IN_USE

Sections = dict[str, Any]

#: An H200 node in small: eth0 with the default route of both families, and a fabric that shadows
#: the expected CIDRs.
LINKS = """
ip link set lo up
ip link add eth0 type veth peer name wire && ip link set wire up && ip link set eth0 up
ip address add 10.224.0.4/16 dev eth0 && ip route add default via 10.224.0.1 dev eth0
ip -6 address add 2001:db8::4/64 dev eth0 nodad && ip -6 route add default via fe80::1 dev eth0
ip link add ib0 type veth peer name fabric && ip link set fabric up && ip link set ib0 up
ip address add 172.16.1.4/16 dev ib0
"""


def config(*cidrs: str, routes: tuple[Mapping[str, Any], ...] = (), **sections: Any) -> Sections:
    """A config with a route for each CIDR that it expects, and more routes and sections."""
    own = [{"destination": cidr} for cidr in cidrs]
    return {
        "staticRoutes": {"enabled": True, "routes": [*own, *routes]},
        "routeOverlap": {"expectedCidrs": [*cidrs]},
        **sections,
    }


_BOTH = "172.16.8.0/22", "172.16.16.0/22"
#: The config of an earlier apply, on a node that is configured again; and one that is right in a
#: trouble. That one keeps the earlier CIDR, since STRICT refuses to drop it with its route; the
#: earlier routes together with the new check shut the gate.
EARLIER = config("172.16.8.0/22")
GOOD = config(*_BOTH)


class Outcome(NamedTuple):
    """The outcome of one apply; every field is a word of the table."""

    status: int
    #: `nothing`, `the earlier` or `the new` config, or `a mixture`; then the routes that carry our
    #: mark.
    installed: str
    live: str
    gate: str
    after_reboot: str


class Promise(NamedTuple):
    """The outcomes of a first apply, and of one over an installed config."""

    first: Outcome
    again: Outcome


#: A config that was right stays; where there was none, the gate holds.
REFUSED = Promise(
    Outcome(3, "the new", "nothing", "shut", "held"),
    Outcome(3, "the earlier", "the earlier", "open", "started"),
)
#: A trouble of an optional part is reported, and holds nothing.
OPTIONAL = Promise(*[Outcome(0, "the new", "the new", "open", "started")] * 2)


@attrs.frozen(kw_only=True)
class Trouble:
    """One row of the table for each apply; `promise` by mode where the modes differ."""

    name: str
    promise: Promise
    strict: Promise | None = None
    config: Mapping[str, Any] = attrs.field(factory=lambda: GOOD)
    #: The message of apply that shows that it met the trouble.
    printed: str
    #: Bash that makes the trouble on a machine that runs, and, if it is to outlast that, before the
    #: next boot.
    commands: str = ""
    outlasts_a_boot: bool = False
    #: Bash that ends it; where it is the config that is wrong, a right one is applied instead.
    mend: str = ""

    def promised(self, apply: str, mode: str) -> Outcome:
        """The outcome for `first` or `again`, under WARN or STRICT."""
        promise = self.strict if mode == "STRICT" and self.strict else self.promise
        return promise.first if apply == "first" else promise.again


def _with_route(**route: str) -> Sections:
    return config(*_BOTH, routes=({"destination": "192.168.77.0/24", **route},))


#: Every task of a config for a node with IPv6 has something to change.
PROBES = config(*_BOTH, probeSnat={"enabled": True, "dev": "eth0", "detect": "always"})
_CLOUD = config(*_BOTH, probeSnat={"enabled": True, "dev": "eth0", "detect": "imds"})
_SWEEP = config(*_BOTH, staleCni={"enabled": True, "podCidrs": ["10.240.0.0/16"]})
_NO_LEASE = "ip address flush dev eth0 && ip route flush table main exact default"
#: A rule for a pod that is gone, and the file by which the container runtime would call azure-vnet.
_AZURE_VNET = """
ebtables-nft -t nat -A PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.240.0.9 -j arpreply --arpreply-mac 2:0:0:0:0:9
mkdir -p /etc/cni/net.d
echo '{"cniVersion": "0.3.0", "name": "azure", "plugins": [{"type": "azure-vnet"}]}' > /etc/cni/net.d/10-azure.conflist
"""
#: The cloud's address belongs to the machine itself, and no service listens there.
_CLOUD_404 = """
ip address add 169.254.169.254/32 dev lo
mkdir /tmp/empty
systemd-run --quiet --working-directory=/tmp/empty python3 -c '
from http.server import SimpleHTTPRequestHandler
from socketserver import ThreadingTCPServer
ThreadingTCPServer(("169.254.169.254", 80), SimpleHTTPRequestHandler).serve_forever()'
for _ in {1..100}; do ! (: > /dev/tcp/169.254.169.254/80) 2> /dev/null || break; sleep .1; done
"""
#: The file system is full to the last byte; units next to this may free some at any time.
RUN_FULL = """
mount -o remount,size=$(($(df --output=used -k /run | tail -n 1) + 64))k /run
cat /dev/zero > /run/filling 2> /dev/null || :
"""

TROUBLES = (
    Trouble(name="nothing is wrong", promise=OPTIONAL, printed="+ 172.16.16.0/22 via 10.224.0.1"),
    Trouble(
        name="an overlap remains",
        config={
            **config("172.16.8.0/22", routes=({"destination": "192.168.77.0/24"},)),
            "routeOverlap": GOOD["routeOverlap"],
        },
        printed="overlap",
        promise=OPTIONAL,
        strict=Promise(*[Outcome(1, "the new", "the new", "shut", "held")] * 2),
        mend="ip route add 172.16.16.0/22 via 10.224.0.1 dev eth0",
    ),
    Trouble(
        name="a route is refused",
        config=_with_route(gateway="10.224.255.255", dev="eth0"),
        printed="192.168.77.0/24 via 10.224.255.255 dev eth0",
        promise=REFUSED,
    ),
    Trouble(
        name="a typo in a gateway",
        config=_with_route(gateway="10.24.0.1", dev="eth0"),
        printed="192.168.77.0/24 via 10.24.0.1 dev eth0",
        promise=REFUSED,
    ),
    Trouble(
        name="no lease",
        printed="table main has no IPv4 default route",
        # With its address the device has lost the earlier routes, and the scripts of their config
        # wait for it, too.
        promise=Promise(REFUSED.first, Outcome(3, "the earlier", "nothing", "shut", "held")),
        commands=_NO_LEASE,
        outlasts_a_boot=True,
        mend="ip address add 10.224.0.4/16 dev eth0 && ip route add default via 10.224.0.1 dev eth0",
    ),
    Trouble(
        name="a device is missing",
        config=_with_route(gateway="10.225.0.1", dev="eth1"),
        printed="no such device: eth1",
        promise=REFUSED,
        mend="ip link add eth1 type veth peer name wire1 && ip link set wire1 up && ip link set eth1 up\n"
        "ip address add 10.225.0.4/16 dev eth1",
    ),
    Trouble(name="IMDS is silent", config=_CLOUD, printed="gave no answer in", promise=OPTIONAL),
    Trouble(
        name="IMDS answers 404",
        config=_CLOUD,
        printed="the last: 404 File not found",
        commands=_CLOUD_404,
        promise=OPTIONAL,
    ),
    Trouble(
        name="nft is missing",
        config=PROBES,
        printed="nft is needed ",
        promise=OPTIONAL,
        commands="rm -f /usr/sbin/nft",
        outlasts_a_boot=True,
    ),
    Trouble(
        name="ebtables is missing",
        config=_SWEEP,
        printed="ebtables-nft is needed ",
        promise=OPTIONAL,
        commands="rm -f /usr/sbin/ebtables*",
        outlasts_a_boot=True,
    ),
    Trouble(
        name="azure-vnet is configured",
        config=_SWEEP,
        printed=IN_USE,
        promise=OPTIONAL,
        commands=_AZURE_VNET,
    ),
    Trouble(
        name="/run is full",
        # "No space left on device"; or, if something in /run has meanwhile ended, systemd 252.39
        # refuses to reload: "not enough space available".
        printed=" space ",
        # systemd reads no unit files then, so nothing replaces a config.
        promise=Promise(Outcome(3, "the new", "the new", "open", "started"), REFUSED.again),
        # There is no room to try the program, without which STRICT would hold every gate.
        strict=Promise(Outcome(3, "nothing", "nothing", "open", "started"), REFUSED.again),
        commands=RUN_FULL,
    ),
    Trouble(
        name="/etc is read-only",
        printed="Read-only file system",
        promise=Promise(
            Outcome(3, "nothing", "the new", "open", "started"),
            Outcome(3, "the earlier", "the earlier", "open", "started"),
        ),
        commands="mount --bind /etc /etc && mount -o remount,bind,ro /etc",
        outlasts_a_boot=True,
    ),
)
