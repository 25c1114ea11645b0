"""Probes on the link: the packets, and facts that only the kernel shows; the contract is in
test_link_layer.py.
"""

import errno
import re
import socket
import struct
import sys
from collections.abc import Iterator
from functools import partial

import pytest
from host.contracts.link_layer import PRESENT as THERE
from hypothesis import example, given
from hypothesis import strategies as st
from support.kernel import needs_kernel, powerless
from support.kernel_links import KernelLinks
from support.patience import wait_until
from support.printed import NOT_ASKED
from support.probe_worlds import ICMPV6, checksum_is_right, packet

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink import probes
from hostrouting.host.netlink.conversation import in_namespace
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
from hostrouting.host.netlink.probes import answered_address, pack_address, question
from hostrouting.testing import KernelNode
from phases import Context, DeadlineExceededError

MAC = bytes.fromhex("020000000a01")
OTHER_MAC = bytes.fromhex("123456789abc")
ETH_P_ALL = 3

macs, ipv4s, ipv6s = (st.binary(min_size=size, max_size=size) for size in (6, 4, 16))


def option(kind: int, eights: int) -> bytes:
    """Return an option of a neighbour advertisement, of so many times eight bytes."""
    return bytes([kind, eights]) + bytes(eights * 8 - 2)


options = st.lists(st.builds(option, st.integers(0, 255), st.integers(1, 3)), max_size=3).map(
    b"".join
)


def reply(address: bytes) -> bytes:
    """An ARP reply as Linux makes it to a probe."""
    head = MAC + OTHER_MAC + struct.pack("!HHHBBH", 0x0806, 1, 0x0800, 6, 4, 2)
    return head + OTHER_MAC + address + MAC + bytes(4)


def advertisement(address: bytes, options: bytes = b"\2\1" + OTHER_MAC) -> bytes:
    """A neighbour advertisement to all nodes."""
    body = struct.pack("!BBHI", 136, 0, 0, 0x20000000) + address + options
    target = socket.inet_ntop(socket.AF_INET6, address)
    answer = packet(target, "ff02::1", ICMPV6, body, hop_limit=255)
    return b"\x33\x33\0\0\0\1" + OTHER_MAC + b"\x86\xdd" + answer


# --- packets


def test_the_question_for_an_ipv4_address_is_an_arp_probe() -> None:
    """The probe for an IPv4 address is a broadcast ARP request from our hardware address, with
    0.0.0.0 as sender.
    """
    assert question(MAC, pack_address("10.240.0.9")).hex(" ") == (
        "ff ff ff ff ff ff 02 00 00 00 0a 01 08 06 "
        "00 01 08 00 06 04 00 01 02 00 00 00 0a 01 00 00 00 00 00 00 00 00 00 00 0a f0 00 09"
    )


def test_the_question_for_an_ipv6_address_has_an_unused_sender() -> None:
    """The probe for an IPv6 address goes to the solicited-node group with hop limit 255, and is
    answered to a group that bridges do not forward.
    """
    assert question(MAC, pack_address("fd00:1::12:3456")).hex(" ") == (
        "33 33 ff 12 34 56 02 00 00 00 0a 01 86 dd "
        "60 00 00 00 00 20 3a ff fe 80 00 00 00 00 00 00 03 80 c2 ff fe 00 00 01 "
        "ff 02 00 00 00 00 00 00 00 00 00 01 ff 12 34 56 "
        "87 00 8d 48 00 00 00 00 fd 00 00 01 00 00 00 00 00 00 00 00 00 12 34 56 "
        "01 01 01 80 c2 00 00 01"
    )


@given(macs, ipv4s | ipv6s)
def test_a_question_is_not_an_answer(mac: bytes, address: bytes) -> None:
    """A probe does not prove that its sender has the address."""
    assert answered_address(question(mac, address)) is None


@given(macs, ipv6s)
@example(bytes(6), bytes(16))
def test_the_checksum_of_a_question_is_right(mac: bytes, address: bytes) -> None:
    """The words of a probe and its pseudo header add up to 0xffff."""
    questions = question(mac, address)[14:]
    assert checksum_is_right(questions)
    assert questions[42:44] != b"\0\0"


@given(ipv4s, st.binary(max_size=20))
def test_an_arp_reply_names_its_sender(address: bytes, padding: bytes) -> None:
    """An ARP reply is read, and any bytes after it are ignored."""
    assert answered_address(reply(address) + padding) == address


@given(ipv6s, options, st.binary(max_size=20))
def test_an_advertisement_names_its_target(address: bytes, options: bytes, padding: bytes) -> None:
    """An advertisement is read with any options, and any bytes after it are ignored."""
    assert answered_address(advertisement(address, options) + padding) == address


@given(st.binary(max_size=150))
def test_no_bytes_raise(frame: bytes) -> None:
    """Bytes that are not an answer are ignored without an error, also behind the beginning of an
    answer.
    """
    assert answered_address(frame) is None or len(frame) >= 42
    for start in (
        reply(bytes(4))[:14],
        advertisement(bytes(16))[:14],
        advertisement(bytes(16))[:62],
    ):
        answered_address(start + frame)


@given(st.data(), ipv4s, ipv6s)
def test_an_answer_that_was_cut_is_none(data: st.DataObject, ipv4: bytes, ipv6: bytes) -> None:
    """An answer that lacks any byte is ignored."""
    for frame in reply(ipv4), advertisement(ipv6):
        assert answered_address(frame[: data.draw(st.integers(0, len(frame) - 1))]) is None


@given(st.data(), ipv6s)
def test_an_advertisement_with_a_wrong_bit_is_none(data: st.DataObject, address: bytes) -> None:
    """An advertisement with any wrong bit is ignored, by its checksum or by a comparison."""
    frame = bytearray(advertisement(address))
    bit = data.draw(st.integers(18 * 8, len(frame) * 8 - 1))
    frame[bit // 8] ^= 1 << bit % 8
    assert answered_address(bytes(frame)) is None


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(
            advertisement(bytes(16), b"\2\0" + bytes(6)), id="with an option without length"
        ),
        pytest.param(advertisement(bytes(16), b"\2\2" + bytes(6)), id="with an option that is cut"),
        pytest.param(advertisement(bytes(16), b"\2\1\0\0"), id="with half an option"),
        pytest.param(advertisement(bytes(16)).replace(b"\x3a\xff", b"\x3a\xfe"), id="forwarded"),
        pytest.param(
            reply(bytes(4)).replace(b"\x08\x00\x06\x04", b"\x08\x00\x06\x10"),
            id="of long addresses",
        ),
    ],
)
def test_an_invalid_frame_is_not_an_answer(frame: bytes) -> None:
    """An advertisement that RFC 4861 tells a host to discard is not an answer, nor is an ARP reply
    of long addresses.
    """
    assert answered_address(frame) is None


# --- the kernel


@pytest.fixture
def node() -> Iterator[KernelLinks]:
    """A bridge with a pod on it, and a pod next to it."""
    with KernelNode.made() as made, KernelLinks(made) as links:
        # Without link-local addresses the kernel sends nothing by itself.
        made.run("sysctl", "-qw", "net.ipv6.conf.default.addr_gen_mode=1")
        links.add_device("azure0", kind="bridge", addresses=["10.240.0.4/16", "fd00:1::4/64"])
        links.add_pod("azv1", "10.240.0.9", "fd00:1::9", master="azure0")
        links.add_pod("azv2", "10.240.0.10", "fd00:1::10")
        yield links


@pytest.fixture
def layer(node: KernelLinks) -> NetlinkLinkLayer:
    return NetlinkLinkLayer(netns=node.name)


#: The kernel reports to multicast groups (NOARP) when it likes, and a pod remembers the sender of a
#: question.
NOISE = re.compile(" NOARP|^fe80::380:c2ff:fe00:1 .* lladdr 01:80:c2:00:00:01 ")


@needs_kernel
class TestOnTheKernel:
    """Facts about probes that the contract cannot show."""

    def shown(self, node: KernelLinks) -> list[list[str]]:
        """Return the neighbours, addresses and routes of the node and of its pods, a list each."""
        listings = []
        for namespace in node.kernel, *node.pods.values():
            for words in "neigh show nud all", "-o address", "-4 route", "-6 route":
                # It may take the kernel a second to notice that a link has come up.
                shown = namespace.ip(words).replace("linkdown", "").splitlines()
                listings.append(sorted(line for line in shown if not NOISE.search(line)))
        return listings

    def test_a_question_changes_no_neighbour(
        self, node: KernelLinks, layer: NetlinkLinkLayer
    ) -> None:
        """A probe and its answer change no neighbour of node or pods, and invalidate no address."""
        wrong = "02:00:00:00:00:99"
        for dev, address in [*THERE, ("azure0", "10.240.0.9"), ("azure0", "fd00:1::9")]:
            node.add_neighbour(address, dev, wrong)
        for pod in node.pods.values():
            pod.ip(f"neigh add 10.240.0.4 lladdr {wrong} nud permanent dev eth0")
        before = self.shown(node)
        assert layer.answering(Context(), THERE) == set(THERE)
        assert (
            layer.answering(Context(), [("azv2", "10.240.0.77"), ("azv1", "fd00:1::77")]) == set()
        )
        assert self.shown(node) == before

    def test_multicast_answers_are_heard_on_every_sort_of_device(
        self, node: KernelLinks, layer: NetlinkLinkLayer
    ) -> None:
        """Answers are received if the bridge snoops with a querier, and if the node has no IPv6 on
        the device.
        """
        node.kernel.ip("link set azure0 type bridge mcast_snooping 1 mcast_querier 1")
        for dev in "azv1", "azv2":
            node.kernel.run("sysctl", "-qw", f"net.ipv6.conf.{dev}.disable_ipv6=1")
        # The last two are the IPv6 addresses.
        assert layer.answering(Context(), THERE[2:]) == set(THERE[2:])

    def test_devices_that_vanish_or_go_down_are_passed_over(self, node: KernelLinks) -> None:
        """A device that vanishes or goes down before its probe is skipped, and all others are
        probed.
        """
        node.kernel.set_up("azv1", up=False)
        questions = [("azv9", "10.240.0.9"), *THERE, ("azv9", "fd00:1::9")]
        answers = probes.ask(
            Context(), questions, dict.fromkeys(("azv1", "azv2", "azv9"), MAC), netns=node.name
        )
        assert answers == {place for place in THERE if place[0] == "azv2"}

    @pytest.mark.parametrize("filtered", [True, False])
    def test_only_the_probed_device_counts(self, node: KernelLinks, filtered: bool) -> None:
        """An answer on another device does not count, nor does a sent frame, with the kernel's
        filter and without.
        """
        ipv4 = pack_address("10.240.0.77")
        ipv6 = pack_address("fd00:1::77")
        places = [("azv1", ipv4), ("azv1", ipv6)]
        with (
            tap(node.pods["azv1"]) as near,
            tap(node.pods["azv2"]) as elsewhere,
            tap(node.kernel) as own,
            probes._tap(node.name) if filtered else tap(node.kernel) as opened,
        ):
            opened.setblocking(False)
            for frame in reply(ipv4), advertisement(ipv6):
                elsewhere.sendto(frame, ("eth0", 0))
                own.sendto(frame, ("azv1", 0))
            near.sendto(reply(pack_address("10.240.0.78")), ("eth0", 0))
            nobody = probes._Inquiry(opened, {"azv1": MAC}, places)
            nobody.run(Context())
            for frame in reply(ipv4), advertisement(ipv6):
                near.sendto(frame, ("eth0", 0))
            somebody = probes._Inquiry(opened, {"azv1": MAC}, places)
            somebody.run(Context())
        assert nobody.answered == set()
        assert somebody.answered == set(places)

    def test_a_silent_pod_is_probed_twice(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """A silent pod is probed a second time, as a frame may be lost; a pod that answered is not."""
        addresses = "10.240.0.10", "10.240.0.77", "fd00:1::77", "fd00:1::10"
        questions = [("azv2", address) for address in addresses]
        with tap(node.pods["azv2"]) as heard:
            layer.answering(Context(), questions)
            heard.setblocking(False)
            frames: list[bytes] = []

            def asked() -> list[int]:
                for frame, (_, _, kind, *_) in received(heard):
                    if kind != socket.PACKET_OUTGOING:
                        frames.append(frame)
                macs = {frame[6:12] for frame in frames}
                return [
                    sum(frames.count(question(mac, pack_address(address))) for mac in macs)
                    for address in addresses
                ]

            # On a busy machine the last frames arrive after the call.
            wait_until(
                lambda: asked() == [1, 2, 2, 1], "two frames to each silent pod, and one else"
            )

    def test_a_device_that_takes_nothing_is_an_error(
        self, node: KernelLinks, layer: NetlinkLinkLayer
    ) -> None:
        """A device that accepts no frame is an error, as its silence does not mean that no pod
        answers.
        """
        node.kernel.run("tc", "qdisc", "add", "dev", "azv2", *shaped("1kbit", 30))
        with pytest.raises(BackendError) as caught:
            layer.answering(Context(), THERE)
        assert caught.value.errno == errno.ENOBUFS
        assert str(caught.value) == (
            f"asking for addresses on the link in network namespace {node.name}: No buffer space available"
        )

    def test_a_device_that_is_slow_is_waited_for(
        self, node: KernelLinks, layer: NetlinkLinkLayer
    ) -> None:
        """Every pod is probed over a device that takes only two frames at a time."""
        node.pods["azv2"].ip("route add local 10.200.0.0/16 dev lo")
        node.kernel.run("tc", "qdisc", "add", "dev", "azv2", *shaped("100kbit", 100))
        questions = [("azv2", f"10.200.0.{number}") for number in range(1, 50)]
        assert layer.answering(Context(), questions) == set(questions)

    def test_the_context_ends_the_waiting(self, node: KernelLinks, layer: NetlinkLinkLayer) -> None:
        """A deadline during the wait for answers raises its error."""
        with pytest.raises(DeadlineExceededError):
            layer.answering(Context(timeout=0.1), [("azv1", "10.240.0.77")])

    @pytest.mark.slow
    def test_an_address_that_is_being_tried_out_stays(
        self, node: KernelLinks, layer: NetlinkLinkLayer
    ) -> None:
        """A pod with a tentative address keeps it, and answers as soon as the address is valid."""
        questions = [("azv1", "fd00:1::77"), ("azv2", "fd00:1::77")]
        for pod in node.pods.values():
            # This takes eight or nine seconds: longer than a probe, on a loaded machine, too.
            pod.run("sysctl", "-qw", "net.ipv6.conf.eth0.dad_transmits=8")
            pod.ip("address add fd00:1::77/64 dev eth0")
        assert layer.answering(Context(), questions) == set()
        shows = [
            partial(pod.ip, "-6", "address", "show", "dev", "eth0", "to", "fd00:1::77")
            for pod in node.pods.values()
        ]
        assert all("tentative" in show() for show in shows)
        wait_until(
            lambda: not any(" tentative" in show() for show in shows), "the address stays tentative"
        )
        for show in shows:
            assert "fd00:1::77" in show()
            assert "dadfailed" not in show()
        assert layer.answering(Context(), questions) == set(questions)

    @pytest.mark.parametrize("forwarding", [0, 1])
    @pytest.mark.parametrize("addr_gen_mode", [0, 1])
    def test_the_answers_do_not_concern_the_node(
        self, node: KernelLinks, layer: NetlinkLinkLayer, forwarding: int, addr_gen_mode: int
    ) -> None:
        """The node neither forwards nor refuses the answers, with or without forwarding and
        link-local addresses.

        Either would make it look for the pod, or for us, and so give it a new neighbour.
        """
        for dev in "azure0", "azv1", "azv2":
            node.kernel.run("sysctl", "-qw", f"net.ipv6.conf.{dev}.accept_dad=0")
            node.kernel.run("sysctl", "-qw", f"net.ipv6.conf.{dev}.addr_gen_mode={addr_gen_mode}")
            node.kernel.set_up(dev, up=False)
            node.kernel.set_up(dev)
        node.kernel.ip("address replace fd00:1::4/64 dev azure0 nodad")
        node.kernel.run("sysctl", "-qw", f"net.ipv6.conf.all.forwarding={forwarding}")
        node.kernel.ip("route add fd00:1::10/128 dev azv2")
        before = self.shown(node)[0]
        # The last two are the IPv6 addresses.
        assert layer.answering(Context(), THERE[2:]) == set(THERE[2:])
        assert self.shown(node)[0] == before
        assert ("fe80::" in "".join(self.shown(node)[1])) == (addr_gen_mode == 0)


PROGRAM = """
from hostrouting.exceptions import PermissionDeniedError
from hostrouting.host.netlink.link_layer import NetlinkLinkLayer
from phases import Context
assert not NetlinkLinkLayer().answering(Context(), [])
try:
    print(sorted(NetlinkLinkLayer().answering(Context(), [("azv1", "10.240.0.9"), ("azv2", "fd00:1::10")])))
except PermissionDeniedError as error:
    print(error.errno, error)
"""
ANSWERED = "[('azv1', '10.240.0.9'), ('azv2', 'fd00:1::10')]\n"
REFUSED = f"{errno.EPERM} {NOT_ASKED}\n"


@needs_kernel
@pytest.mark.parametrize(
    ("who", "outcome"),
    [((), ANSWERED), (powerless(), REFUSED), (powerless("net_raw"), ANSWERED)],
    ids=["root", "powerless", "CAP_NET_RAW"],
)
def test_asking_needs_a_capability(node: KernelLinks, who: tuple[str, ...], outcome: str) -> None:
    """A probe needs CAP_NET_RAW alone; without the capability it fails with an error that names
    it, unless there is nothing to probe.
    """
    assert node.kernel.run(*who, sys.executable, "-c", PROGRAM) == outcome


def shaped(rate: str, size: int) -> tuple[str, ...]:
    """A queue for `tc` that takes so many bytes and refuses more."""
    return "root", "tbf", "rate", rate, "burst", str(size), "limit", str(size)


def tap(node: KernelNode) -> socket.socket:
    """A socket that receives everything, and sends anything, in a namespace."""
    return in_namespace(
        node.name, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    )


def received(opened: socket.socket) -> Iterator[tuple[bytes, tuple[str, int, int, int, bytes]]]:
    """Yield every frame that has arrived."""
    while True:
        try:
            yield opened.recvfrom(2048)
        except BlockingIOError:
            return
