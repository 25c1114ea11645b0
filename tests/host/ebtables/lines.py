"""Hypothesis strategies for ebtables rules, as lines that the backends print.

cni_lines     the rules that azure-vnet makes
rule_lines    those, and other rules of every sort
"""

import ipaddress

from hypothesis import strategies as st
from support.small_world import pick

_CHAINS = st.sampled_from(["PREROUTING", "OUTPUT", "POSTROUTING"])
_DEVICES = st.sampled_from(["eth0", "azv0a1b2c3+", "br-0", "a.100"])
_IPV4 = st.integers(1, 2**32 - 2).map(lambda number: str(ipaddress.IPv4Address(number)))
_IPV6 = st.integers(1, 2**128 - 2).map(lambda number: str(ipaddress.IPv6Address(number)))
_NETWORKS = st.builds(
    lambda number, length: str(ipaddress.ip_network((number, length), strict=False)),
    st.integers(0, 2**32 - 1),
    st.integers(1, 31),
)
#: The program takes a lone exclamation mark for a negation, and refuses it there.
_PREFIXES = st.text("abc 01:-!", min_size=1, max_size=20).filter(
    lambda text: text.strip() not in {"", "!"}
)


def _macs(backend: str) -> st.SearchStrategy[str]:
    """Draw hardware addresses; the legacy backend prints no leading zeros."""
    form = "{:02x}" if backend == "nft" else "{:x}"
    return st.lists(st.integers(0, 255), min_size=6, max_size=6).map(
        lambda groups: ":".join(form.format(group) for group in groups)
    )


def cni_lines(backend: str = "nft") -> st.SearchStrategy[str]:
    """Draw a rule that azure-vnet makes, of a pod or of the node."""
    macs = _macs(backend)
    return st.one_of(
        st.builds(
            "-A PREROUTING -p ARP --arp-op Request --arp-ip-dst {} -j arpreply --arpreply-mac {}".format,
            _IPV4,
            macs,
        ),
        st.builds(
            "-A PREROUTING -p IPv4 -i {} --ip-dst {} -j dnat --to-dst {} --dnat-target ACCEPT".format,
            _DEVICES,
            _IPV4,
            macs,
        ),
        st.builds(
            "-A PREROUTING -p IPv6 -i {} --ip6-dst {} -j dnat --to-dst {} --dnat-target ACCEPT".format,
            _DEVICES,
            _IPV6,
            macs,
        ),
        st.builds(
            "-A POSTROUTING -s Unicast -o {} -j snat --to-src {} --snat-arp --snat-target ACCEPT".format,
            _DEVICES,
            macs,
        ),
        st.builds(
            "-A PREROUTING -p ARP -i {} --arp-op Reply -j dnat --to-dst ff:ff:ff:ff:ff:ff --dnat-target ACCEPT".format,
            _DEVICES,
        ),
    )


def rule_lines(backend: str = "nft") -> st.SearchStrategy[str]:
    """Draw a rule by protocol, address, device, mark or rate, inverted or not, with a log or
    another target.
    """
    return cni_lines(backend) | _other_lines(backend)


@st.composite
def _other_lines(draw: st.DrawFn, backend: str) -> str:
    chain = draw(_CHAINS)
    macs = _macs(backend)
    words = ["-A", chain]
    protocol = pick(draw, "", "ARP", "IPv4", "IPv6", "802_1Q", "LLDP", "0x1234", "Length")
    words += ["-p", *_maybe_not(draw), protocol] if protocol else []
    inverted = words[-2:-1] == ["!"]
    if draw(st.booleans()):
        words += [
            "-d",
            *_maybe_not(draw),
            draw(st.sampled_from(["Unicast", "Multicast", "Broadcast", "BGA"]) | macs),
        ]
    if draw(st.booleans()):
        words += ["-o" if chain != "PREROUTING" else "-i", *_maybe_not(draw), draw(_DEVICES)]
    if not inverted:
        words += draw(_of_protocol(protocol, macs))
    # At most one of these: next to a log, ebtables-nft 1.8.9 may leave the mark or the limit out of
    # its output.
    extras = [
        "",
        "--mark 0x1",
        "--mark 0x10/0xff",
        "--limit 3/min --limit-burst 5",
        f'--log-prefix "{draw(_PREFIXES)}"',
    ]
    extra = pick(draw, *extras)
    words += ["--log-level", "info", extra] if extra.startswith("--log") else extra.split()
    return " ".join([*words, "-j", draw(_targets(chain, macs))])


def _maybe_not(draw: st.DrawFn) -> list[str]:
    return ["!"] if draw(st.booleans()) else []


def _of_protocol(protocol: str, macs: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    """Draw matches that only this protocol has."""
    nothing = st.just(list[str]())
    if protocol == "ARP":
        return nothing | st.builds(
            lambda ip, mac: ["--arp-ip-src", ip, "--arp-mac-src", mac], _IPV4 | _NETWORKS, macs
        )
    if protocol == "IPv4":
        return nothing | st.builds(
            lambda ip, port: ["--ip-src", "!", ip, "--ip-proto", "tcp", "--ip-dport", port],
            _IPV4 | _NETWORKS,
            st.sampled_from(["80", "80:90"]),
        )
    if protocol == "IPv6":
        return nothing | st.builds(lambda ip: ["--ip6-src", ip], _IPV6)
    return nothing


def _targets(chain: str, macs: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    verdicts = st.sampled_from(
        ["ACCEPT", "DROP", "CONTINUE", "RETURN", "mark --mark-set 0x1 --mark-target CONTINUE"]
    )
    if chain == "POSTROUTING":
        return verdicts | st.builds("snat --to-src {} --snat-target CONTINUE".format, macs)
    return verdicts | st.builds("dnat --to-dst {} --dnat-target DROP".format, macs)
