"""Impossible answers of a kernel, which are an error that names the request, and are never
misread.
"""

import errno
import socket
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from fuzz.netlink_readers import ASKED, READERS
from hypothesis import given
from hypothesis import strategies as st
from support import played_kernel
from support.played_kernel import DEVICES, PlayedKernel, played

from hostrouting.exceptions import BackendError
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.host.netlink.conversation import Adapter, Conversation
from hostrouting.host.netlink.frames import (
    ERROR,
    AnswersLostError,
    attribute,
    message,
    messages,
    word,
)
from hostrouting.host.netlink.route_codec import LINKS

CASES = Path(__file__).parents[1] / "fuzz" / "cases"
#: The fixed part of each kind of message.
FIXED = {"links": 16, "addresses": 8, "neighbours": 12, "rules": 12, "routes": 12}


def recorded_answers(kind: str, case: str) -> list[bytes]:
    """Return answers that were recorded from a real kernel."""
    return [
        bytes(one) for one in messages(memoryview((CASES / f"netlink-{kind}" / case).read_bytes()))
    ]


def fields_of(one: bytes, kind: str) -> tuple[bytes, list[tuple[int, bytes]]]:
    offset = 16 + FIXED[kind]
    fixed = one[16:offset]
    fields = []
    while offset < len(one):
        length, number = struct.unpack_from("=HH", one, offset)
        fields.append((number, one[offset + 4 : offset + length]))
        offset += length + 3 & ~3
    return fixed, fields


@pytest.mark.parametrize("lie", ["longer than all", "no length", "cut", "another kind"])
@pytest.mark.parametrize(
    ("kind", "command"),
    [(kind, command) for kind, (_, calls) in ASKED.items() for command in calls],
)
def test_a_lie_names_the_question_and_a_next_step(kind: str, command: str, lie: str) -> None:
    """An answer of another kind, or of a wrong length, also of 0, which could make a reader loop,
    is an error that names the request and a next step.
    """
    request, calls = ASKED[kind]
    answer_kind = request - 2
    answer = {
        "longer than all": struct.pack("=IHHII", 4000, answer_kind, 2, 1, 0) + bytes(40),
        "no length": struct.pack("=IHHII", 0, answer_kind, 2, 1, 0) + bytes(40),
        "cut": message(answer_kind, 2, bytes(20))[:6],
        "another kind": message(99, 2, bytes(40)),
    }[lie]
    with played({request: answer}), pytest.raises(BackendError) as raised:
        calls[command]()
    assert (
        f"rtnetlink: the kernel's answer to the request that `{command}` sends cannot be read: "
        in str(raised.value)
    )
    assert "`uname -a`" in str(raised.value)
    assert raised.value.errno == errno.EBADMSG


@pytest.mark.parametrize(
    ("kind", "case", "command", "numbers"),
    [
        ("links", "kernel", "ip -d link", {10}),
        ("addresses", "kernel-ipv4", "ip address", {1, 2}),
        ("addresses", "kernel-both", "ip address", {2}),
        ("neighbours", "kernel-both", "ip neighbour", {1}),
        ("neighbours", "kernel-bridge", "bridge fdb", {9}),
        ("rules", "kernel", "ip -4 rule", {1, 2, 4, 6, 15}),
        ("routes", "kernel-ipv4", "ip -4 route show table all", {1, 4, 5, 6, 7, 15}),
        ("routes", "kernel-ipv6", "ip -6 route show table all", {1, 5, 6, 15}),
    ],
)
def test_an_attribute_of_another_size_is_noticed_and_never_misread(
    kind: str, case: str, command: str, numbers: set[int]
) -> None:
    """An answer with an attribute of a wrong size, or cut off in the last one, is an error and is
    not misread.
    """
    recorded = recorded_answers(kind, case)
    request, calls = ASKED[kind]
    with played({request: b"".join(recorded)}):
        calls[command]()
    tried = set()
    for one in recorded:
        if "-6" in command and one[16] != socket.AF_INET6:
            continue  # passed over unread
        cut = struct.pack("=I", len(one) + 4) + one[4:]
        with played({request: cut}), pytest.raises(BackendError, match="cannot be read"):
            calls[command]()
        _, answer_kind, flags = struct.unpack_from("=IHH", one)
        fixed, fields = fields_of(one, kind)
        for place, (number, payload) in enumerate(fields):
            if number not in numbers:
                continue
            tried.add(number)
            for wrong in payload[:-1], payload + b"\0", b"":
                changed = [*fields[:place], (number, wrong), *fields[place + 1 :]]
                packed = message(
                    answer_kind, flags, fixed + b"".join(attribute(*field) for field in changed)
                )
                with (
                    played({request: packed}),
                    pytest.raises(BackendError, match="cannot be read"),
                ):
                    calls[command]()
    assert tried == numbers


@pytest.mark.parametrize(
    ("kind", "case", "command"),
    [
        ("links", "kernel", "ip -d link"),
        ("addresses", "kernel-both", "ip address"),
        ("neighbours", "kernel-both", "ip neighbour"),
        ("routes", "kernel-ipv4", "ip -4 route show table all"),
        ("routes", "kernel-ipv6", "ip -6 route show table all"),
    ],
)
def test_attributes_that_no_kernel_has_sent_yet_are_passed_over(
    kind: str, case: str, command: str
) -> None:
    """Unknown attributes of any length and flags are skipped; those of a route are kept with the
    route.
    """
    new = [(200, b""), (0x3FFF, b"1"), (0x80C9, b"four"), (0x8FFF, bytes(23))]
    carried = (200, b""), (0x3FFF, b"1"), (0xC9, b"four"), (0xFFF, bytes(23))
    more = b"".join(attribute(*one) for one in new)
    request, calls = ASKED[kind]
    with played({request: b"".join(recorded_answers(kind, case))}):
        before = calls[command]()
    heads = [(*struct.unpack_from("=HH", one, 4), one) for one in recorded_answers(kind, case)]
    longer = [message(number, flags, one[16:] + more) for number, flags, one in heads]
    with played({request: b"".join(longer)}):
        after = calls[command]()
    assert after == (
        [one._replace(extra=one.extra + carried) for one in before] if kind == "routes" else before
    )
    assert before


@pytest.mark.parametrize(
    ("kind", "case", "byte", "most"),
    [
        ("routes", "kernel-ipv4", 1, 32),
        ("routes", "kernel-ipv6", 1, 128),
    ],
)
def test_a_prefix_longer_than_an_address_is_noticed(
    kind: str, case: str, byte: int, most: int
) -> None:
    """A prefix length beyond the bits of an address is an error."""
    [one, *_] = (bytearray(one) for one in recorded_answers(kind, case))
    one[16 + byte] = most + 1
    request, calls = ASKED[kind]
    [call] = [calls[command] for command in calls if ("-6" in command) == (most == 128)]
    with (
        played({request: bytes(one)}),
        pytest.raises(BackendError, match=f"{most + 1} bits long"),
    ):
        call()


@pytest.mark.parametrize("length", [0, 7, 9, 200])
def test_a_next_hop_that_lies_about_its_length_is_noticed(length: int) -> None:
    """A next hop with a wrong length is an error, so that the next hops behind it are not left
    out.
    """
    lying = b"".join(struct.pack("=HBBI", size, 0, 0, DEVICES["e0"]) for size in (8, length))
    route = (
        struct.pack("=8BI", 2, 0, 0, 0, 254, 3, 0, 1, 0)
        + attribute(15, word.pack(254))
        + attribute(9, lying)
    )
    with (
        played({played_kernel.ROUTES: message(24, 2, route)}),
        pytest.raises(BackendError, match="cannot be read"),
    ):
        NetlinkBackend().routes()


def test_an_answer_that_is_neither_route_nor_refusal_is_not_an_answer() -> None:
    """An answer to a lookup that is neither a route nor a refusal, such as an acknowledgement, is
    an error.
    """
    acknowledged = message(ERROR, 0, word.pack(0) + bytes(16))
    with (
        played({played_kernel.ROUTES: acknowledged}),
        pytest.raises(BackendError, match="acknowledged but not"),
    ):
        NetlinkBackend().lookup([1])


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(message(ERROR, 0, b"\0"), id="cut"),
        pytest.param(message(24, 0, bytes(12)), id="no acknowledgement"),
        pytest.param(
            message(
                ERROR, 0x300, struct.pack("=i", -22) + bytes(16) + b"\x20\0\1\0", sequence=1 << 24
            ),
            id="cut sentence",
        ),
        pytest.param(
            message(ERROR, 0, struct.pack("=i", -(2**31)) + bytes(16), sequence=1 << 24),
            id="no errno",
        ),
        pytest.param(
            message(ERROR, 0, struct.pack("=i", -22) + bytes(16), sequence=0x63000000),
            id="of no change",
        ),
        pytest.param(
            message(ERROR, 0, struct.pack("=i", -22) + bytes(16), sequence=2 << 24),
            id="of the change after the last",
        ),
    ],
)
def test_an_answer_to_a_change_that_cannot_be_read_is_as_good_as_lost(answer: bytes) -> None:
    """An unreadable answer to a change raises AnswersLostError, since the change may have been
    made.
    """
    kernel = PlayedKernel({played_kernel.NEW_ROUTE: answer})
    with pytest.raises(AnswersLostError):
        Conversation(kernel).deliver([message(24, 1, bytes(12), sequence=1 << 24)], 1)  # type: ignore[arg-type]


class Overflowing(PlayedKernel):
    """A kernel whose queue for answers overflows before the `number`-th answer is received."""

    def __init__(self, number: int) -> None:
        refused = message(ERROR, 0, struct.pack("=i", -17) + bytes(16), sequence=1 << 24)
        super().__init__({played_kernel.NEW_ROUTE: refused})
        self._left = number

    def recv(self, size: int, flags: int) -> bytes:
        """Report the overflow once, as the kernel does."""
        self._left -= 1
        if not self._left:
            raise OSError(errno.ENOBUFS, "No buffer space available")
        return super().recv(size, flags)


# The second finds the queue of the batch empty; the third would be the acknowledgement.
@pytest.mark.parametrize("number", [1, 3])
def test_answers_that_fitted_before_an_overflow_are_not_left(number: int) -> None:
    """A reading after an overflow, by the same socket, begins with its own answer."""
    conversation = Conversation(Overflowing(number))  # type: ignore[arg-type]
    with pytest.raises(AnswersLostError):
        conversation.deliver([message(24, 1, bytes(12), sequence=1 << 24)], 1)
    assert conversation.indexes() == DEVICES


def test_a_missing_answer_of_many_is_a_lost_one() -> None:
    """A lookup of many that does not have an answer raises AnswersLostError; a lost answer of a single
    lookup is an error that can be retried.
    """
    conversation = Conversation(PlayedKernel({}))  # type: ignore[arg-type]
    with pytest.raises(AnswersLostError):
        conversation.ask_many(memoryview(message(26, 1, bytes(12))), 1, "ip route get")
    with played({}), pytest.raises(BackendError, match="answer to a lookup was lost") as raised:
        NetlinkBackend().lookup([1, 2])
    assert raised.value.retryable


def test_the_rest_of_a_dump_is_not_taken_for_the_next_one() -> None:
    """A dump that is interrupted by a change is read again by the same socket, without the rest of
    the first one.
    """
    conversation = Conversation(PlayedKernel({}))  # type: ignore[arg-type]
    lengths: list[int] = []

    def read() -> int:
        dump = conversation.dump(LINKS)
        lengths.append(len(next(dump)))
        if len(lengths) == 1:
            raise InterruptedError(errno.EINTR, "the table changed during the dump")
        return 1 + len([*dump])

    assert conversation.consistently(read) == len(DEVICES)


@given(st.data())
def test_a_damaged_answer_is_a_documented_error(data: st.DataObject) -> None:
    """Any recorded answer that is cut off or overwritten raises a documented error in each method
    that reads it.
    """
    kind = data.draw(st.sampled_from(sorted(READERS)))
    case = data.draw(st.sampled_from(sorted((CASES / f"netlink-{kind}").iterdir())))
    answer = bytearray(case.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        answer[data.draw(st.integers(0, len(answer) - 1))] = data.draw(st.integers(0, 255))
    answer = answer[: data.draw(st.integers(0, len(answer)))]
    for read in READERS[kind]:
        with suppress(BackendError):
            read(bytes(answer))


def test_a_sandbox_that_forbids_netlink_is_named() -> None:
    """EAFNOSUPPORT from `socket`, as in a unit whose `RestrictAddressFamilies=` does not have AF_NETLINK,
    is an error that names the sandbox; EPERM, as of a namespace that may not be entered, is an
    error without this hint.
    """
    refused = OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
    message = r"^rtnetlink: Address family .*; a sandbox forbids it: allow AF_NETLINK "
    with pytest.raises(BackendError, match=message), Adapter()._open():
        raise refused
    with pytest.raises(BackendError, match=r"^rtnetlink: Not permitted$"), Adapter()._open():
        raise OSError(errno.EPERM, "Not permitted")
