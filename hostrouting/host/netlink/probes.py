"""ARP and ND requests for the owner of an address, from a sender that nothing else uses."""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from array import array
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from hostrouting.base.errors import BackendError
from hostrouting.host.netlink.conversation import enlarge, errors_of, in_namespace
from hostrouting.net.addresses import Address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hostrouting.host.ports import LinkAddress
    from phases import Context

#: Seconds to wait for answers to the first request, and to the second, which is sent because a
#: frame may be lost.
_PATIENCE = (0.3, 0.7)
#: Seconds between two checks of the context while waiting.
_STEP = 0.05
#: Seconds until a failed send is tried again.
_BREATH = 0.005
#: A request that cannot be sent in this time is an error: silence means nothing if the request was
#: never sent.
_SENDING_PATIENCE = 1.0
#: Answers read at a time.
_MOUTHFUL = 1024
_RECEIVE_BYTES = 8 << 20
_LONGEST_FRAME = 2048

_DISCARD_PORT = 9
_ETH_P_ALL = 0x0003
_ETH_P_ARP = 0x0806
_ETH_P_IPV6 = 0x86DD
_SO_ATTACH_FILTER = 26
_GONE = frozenset({errno.ENETDOWN, errno.ENXIO, errno.ENODEV})
_FULL = frozenset({errno.EAGAIN, errno.ENOBUFS})

_ethernet = struct.Struct("!6s6sH")
#: Types and lengths of both kinds of address, the operation, then the two addresses of the sender
#: and of the target.
_arp = struct.Struct("!HHBBH6s4s6s4s")
_arp_kinds = (1, 0x0800, 6, 4)
_ARP_REQUEST = 1
_ARP_REPLY = 2
_ipv6 = struct.Struct("!IHBB16s16s")
#: Type, code, checksum, flags, target; options follow.
_discovery = struct.Struct("!BBHI16s")
_SOLICITATION = 135
_ADVERTISEMENT = 136
_IPV6_START = _ethernet.size
_DISCOVERY_START = _IPV6_START + _ipv6.size
_OPTIONS_START = _DISCOVERY_START + _discovery.size
#: The hop limit of a packet that no router has forwarded: each would have decreased it.
_ON_LINK = 255
_SOLICITED_NODE = bytes.fromhex("ff0200000000000000000001ff")
#: The destination of IPv6 answers. It is not the device's own address: the kernel would receive the
#: answers too, forward or refuse them, and resolve the pod's address to do so; later the pod would
#: check that we are still reachable. Every bridge drops this group address (of pause frames, IEEE
#: 802.3) at its port, and the kernel neither forwards nor refuses packets to a group. The packet
#: socket receives them before all that.
_ASKER_MAC = bytes.fromhex("0180c2000001")
#: The link-local address that belongs to that hardware address (RFC 4291, modified EUI-64). No
#: device has either, so no entry of a real neighbour changes.
_ASKER = bytes.fromhex("fe800000000000000380c2fffe000001")
#: "Source link-layer address", one unit of eight bytes.
_ASKER_OPTION = b"\x01\x01" + _ASKER_MAC


# --- packets


def pack_address(address: str) -> bytes:
    """Return the packed address; raise `BackendError` (EINVAL) if it is not an address.

    >>> pack_address("10.240.0.9").hex()
    '0af00009'
    """
    try:
        return Address.parse(address).packed
    except ValueError as error:
        raise BackendError(
            f"{address!r} is not an address; give one without a prefix length", errno=errno.EINVAL
        ) from error


def question(mac: bytes, address: bytes) -> bytes:
    """Return the frame with which the device `mac` requests the owner of an address.

    An IPv4 request goes without a sender address (RFC 5227): the owner must answer, and gets
    nothing to put into its neighbour table. Only a node that is just probing the address by that
    RFC would take it for a conflict; CNI plugins and Linux do not probe.

    In IPv6 probing is the rule, and a request without a sender is a probe (RFC 4862). So the
    request has a sender: the owner answers, and a node that is only probing the address keeps it
    and stays silent.
    """
    if len(address) == 4:
        packet = _arp.pack(*_arp_kinds, _ARP_REQUEST, mac, bytes(4), bytes(6), address)
        return _ethernet.pack(b"\xff" * 6, mac, _ETH_P_ARP) + packet
    group = _SOLICITED_NODE + address[13:]
    body = _discovery.pack(_SOLICITATION, 0, 0, 0, address) + _ASKER_OPTION
    ipv6 = _ipv6.pack(6 << 28, len(body), socket.IPPROTO_ICMPV6, _ON_LINK, _ASKER, group)
    checksum = _checksum(ipv6, body).to_bytes(2, "big")
    frame = _ethernet.pack(b"\x33\x33" + group[12:], mac, _ETH_P_IPV6) + ipv6
    return frame + body[:2] + checksum + body[4:]


def answered_address(frame: bytes) -> bytes | None:
    """Return the address of an ARP reply or a neighbour advertisement, else None."""
    protocol = int.from_bytes(frame[12:14], "big")
    if protocol == _ETH_P_ARP and len(frame) >= _ethernet.size + _arp.size:
        *kinds, operation, _, address, _, _ = _arp.unpack_from(frame, _ethernet.size)
        return address if tuple(kinds) == _arp_kinds and operation == _ARP_REPLY else None
    if protocol != _ETH_P_IPV6 or len(frame) < _OPTIONS_START:
        return None
    first, length, protocol, hops, _, _ = _ipv6.unpack_from(frame, _IPV6_START)
    kind, code, _, _, address = _discovery.unpack_from(frame, _DISCOVERY_START)
    # A short frame may have been padded: bytes after the end of the packet do not belong to it.
    body = frame[_DISCOVERY_START : _DISCOVERY_START + length]
    found = first >> 28, protocol, hops, kind, code, len(body)
    expected = 6, socket.IPPROTO_ICMPV6, _ON_LINK, _ADVERTISEMENT, 0, length
    if found != expected or length < _discovery.size or not _are_options(body[_discovery.size :]):
        return None
    ipv6 = frame[_IPV6_START:_DISCOVERY_START]
    return address if _checksum(ipv6, body) == 0 else None


def _are_options(packed: bytes) -> bool:
    """Return True if these are complete options; each has its length in units of eight bytes."""
    while len(packed) >= 8 and packed[1]:
        length = packed[1] * 8
        if length > len(packed):
            return False
        packed = packed[length:]
    return not packed


def _checksum(ipv6: bytes, body: bytes) -> int:
    """Return the checksum of an ICMPv6 message without one; 0 if its checksum is right."""
    # The pseudo header: both addresses, the length, the protocol.
    packed = (
        ipv6[8:]
        + struct.pack("!II", len(body), socket.IPPROTO_ICMPV6)
        + body
        + bytes(len(body) % 2)
    )
    # The ones' complement sum of 16-bit words is the whole, as one number, modulo 2 ** 16 - 1.
    # There 0 and the modulus are the same, and the sum of anything but zeros is the modulus.
    remainder = int.from_bytes(packed, "big") % 0xFFFF
    return 0xFFFF - remainder if remainder else 0


# --- the exchange


def ask(
    ctx: Context, pairs: Iterable[LinkAddress], macs: Mapping[str, bytes], *, netns: str | None
) -> frozenset[LinkAddress]:
    """Return the pairs (device, address) that were answered, of the devices in `macs`.

    The tables of this node stay as they are. A pod that gets a request for an IPv6 address notes
    the sender (`_ASKER`), as it does for any packet, and forgets it after a while.
    """
    places = {(dev, address): (dev, pack_address(address)) for dev, address in pairs}
    with _tap(netns) as opened:
        inquiry = _Inquiry(opened, macs, (place for place in places.values() if place[0] in macs))
        inquiry.run(ctx)
    return frozenset(pair for pair, place in places.items() if place in inquiry.answered)


def touch(pairs: Iterable[LinkAddress], *, netns: str | None) -> None:
    """Send an empty datagram to each (device, IPv4 address), so that the kernel resolves it."""
    for dev, address in pairs:
        made = partial(socket.socket, socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        denied = f"no datagram to {address} may be sent by {dev}; its answer is unknown"
        name = dev.encode(errors="surrogateescape")
        with errors_of(f"a datagram to {address} by {dev}", denied=denied):
            try:
                with in_namespace(netns, made) as opened:
                    opened.setblocking(False)
                    opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name)
                    opened.sendto(b"", (address, _DISCARD_PORT))
            except OSError as error:
                if error.errno not in _GONE:
                    raise


class _Inquiry:
    """The requests of one call and their answers. OSError is the kernel's."""

    def __init__(
        self, opened: socket.socket, macs: Mapping[str, bytes], places: Iterable[tuple[str, bytes]]
    ) -> None:
        self._socket = opened
        self._macs = macs
        #: A dict for its order.
        self._waiting = dict.fromkeys(places)
        self.answered: set[tuple[str, bytes]] = set()
        self._poll = select.poll()
        self._poll.register(opened, select.POLLIN)

    def run(self, ctx: Context) -> None:
        """Send the requests, and once more those without an answer."""
        for patience in _PATIENCE:
            for place in tuple(self._waiting):
                ctx.check()
                self._hear(0)
                if place in self._waiting:
                    self._send(ctx, *place)
            until = time.monotonic() + patience
            while self._waiting and (left := until - time.monotonic()) > 0:
                ctx.check()
                self._hear(min(left, _STEP))

    def _send(self, ctx: Context, dev: str, address: bytes) -> None:
        frame = question(self._macs[dev], address)
        until = time.monotonic() + _SENDING_PATIENCE
        while True:
            try:
                self._socket.sendto(frame, (dev, int.from_bytes(frame[12:14], "big")))
            except OSError as error:
                if error.errno in _GONE:
                    kept = (place for place in self._waiting if place[0] != dev)
                    self._waiting = dict.fromkeys(kept)
                    return
                if error.errno not in _FULL or time.monotonic() > until:
                    raise
            else:
                return
            ctx.check()
            self._hear(_BREATH)

    def _hear(self, seconds: float) -> None:
        """Note the answers that have arrived or arrive within that time."""
        if not self._poll.poll(seconds * 1000):
            return
        with suppress(BlockingIOError):
            for _ in range(_MOUTHFUL):
                frame, (dev, _, kind, *_) = self._socket.recvfrom(_LONGEST_FRAME)
                address = answered_address(frame)
                # A frame that goes out of a device is not an answer from there.
                if (
                    address is not None
                    and kind != socket.PACKET_OUTGOING
                    and (dev, address) in self._waiting
                ):
                    del self._waiting[dev, address]
                    self.answered.add((dev, address))


# --- the socket


@contextmanager
def _tap(netns: str | None) -> Iterator[socket.socket]:
    """Open a socket for every device of the namespace; OSError becomes a `BackendError`."""
    where = f" in network namespace {netns}" if netns else ""
    what = f"asking for addresses on the link{where}"
    # The bridge takes the frames of its ports before a socket of ETH_P_ARP sees them: such a socket
    # would see only those to the node itself, as if they came from the bridge. A socket of
    # ETH_P_ALL comes first. Answers to a group (those of IPv6) need no membership: a veth receives
    # everything from its other end, and the port of a bridge is promiscuous. Multicast snooping
    # comes later, too.
    made = partial(
        socket.socket,
        socket.AF_PACKET,
        socket.SOCK_RAW | socket.SOCK_CLOEXEC,
        socket.htons(_ETH_P_ALL),
    )
    with (
        errors_of(what, denied=f"{what} needs root or CAP_NET_RAW; nothing was asked"),
        in_namespace(netns, made) as opened,
    ):
        opened.setblocking(False)
        # It receives only answers, and many of them.
        program = array(
            "B", b"".join(struct.pack("=HBBI", *instruction) for instruction in _ANSWERS_ONLY)
        )
        # The kernel has read the program when setsockopt returns.
        address, _ = program.buffer_info()
        attached = struct.pack("@HP", len(_ANSWERS_ONLY), address)
        opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, attached)
        enlarge(opened, _RECEIVE_BYTES)
        yield opened


# Classic BPF, since all traffic of a busy node passes here: (operation, steps if true, steps if
# not, operand).
_BYTE = 0x30
_HALF = 0x28
_IF_EQUAL = 0x15
_RETURN = 0x06
_PACKET_KIND = 0xFFFFF004  # SKF_AD_OFF + SKF_AD_PKTTYPE
_ANSWERS_ONLY = (
    (_BYTE, 0, 0, _PACKET_KIND),
    (_IF_EQUAL, 9, 0, 4),  # PACKET_OUTGOING
    (_HALF, 0, 0, 12),
    (_IF_EQUAL, 0, 2, _ETH_P_ARP),
    (_HALF, 0, 0, _ethernet.size + 6),
    (_IF_EQUAL, 6, 5, _ARP_REPLY),
    (_IF_EQUAL, 0, 4, _ETH_P_IPV6),
    (_BYTE, 0, 0, _IPV6_START + 6),
    (_IF_EQUAL, 0, 2, socket.IPPROTO_ICMPV6),
    (_BYTE, 0, 0, _DISCOVERY_START),
    (_IF_EQUAL, 1, 0, _ADVERTISEMENT),
    (_RETURN, 0, 0, 0),
    (_RETURN, 0, 0, _LONGEST_FRAME),
)
