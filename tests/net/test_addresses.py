"""IPv4 addresses and device names as text, compared with the standard library and with the kernel's
own rule.
"""

import ipaddress
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.printed import NO_DEVICE_NAME, NO_IPV4_ADDRESS

from hostrouting.net.addresses import (
    IPV4,
    Address,
    Prefix,
    check_device_name,
    format_ipv4,
    netmask,
    parse_cidr,
    parse_ipv4,
)

#: Text near enough to addresses that random changes hit the edges.
NEARLY_ADDRESSES = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){2,4}", fullmatch=True) | st.text(
    "0123456789./ +x٣\n"
)
NEARLY_CIDRS = st.from_regex(
    r"[0-9]{1,3}(\.[0-9]{1,3}){3}(/[0-9]{0,3})?", fullmatch=True
) | st.text("0123456789./ +٣\n")


def _accepts(function: object, text: str) -> bool:
    assert callable(function)
    try:
        function(text)
    except ValueError:
        return False
    return True


@given(st.integers(0, 0xFFFFFFFF))
def test_addresses_survive_writing_and_reading(address: int) -> None:
    """Every address survives the way to text, which is the standard library's text, and back."""
    text = format_ipv4(address)
    assert text == str(ipaddress.IPv4Address(address))
    assert parse_ipv4(text) == address


def test_link_local_addresses_are_those_of_fe80_10() -> None:
    """The link-local addresses of IPv6 are those of fe80::/10, as RFC 4291 defines, and not of
    fe80::/16 alone.
    """
    texts = "fe80::1", "febf:ffff::1", "fe7f:ffff::1", "fec0::1"
    assert [Address.parse(text).is_link_local for text in texts] == [True, True, False, False]


@given(NEARLY_ADDRESSES)
@example("1.2.3")
@example("010.0.0.1")
@example("1.2.3.4 ")
@example("1.2.3.٣")
@example("")
@example("1.2.3.4\x00")
@example("\ud800")
@example("1.2.3.4%eth0")
@example("::1")
@example("0x7f.1")
@example("\x00")
@example("1.2.3.4\n")
@example("1.2.3.256")
@example("-1.2.3.4")
def test_addresses_are_those_that_the_standard_library_accepts(text: str) -> None:
    """parse_ipv4 accepts exactly the texts that ipaddress.IPv4Address accepts, and reads the same
    number; NUL, surrogates, zones and other families are refused with the same message, too.
    """
    try:
        expected = int(ipaddress.IPv4Address(text))
    except ValueError:
        with pytest.raises(ValueError, match=NO_IPV4_ADDRESS) as caught:
            parse_ipv4(text)
        assert str(caught.value) == f"{text!r} {NO_IPV4_ADDRESS}"
    else:
        assert parse_ipv4(text) == expected


@given(NEARLY_CIDRS)
@example("10.0.0.0/8")
@example("10.0.0.0/08")
@example("10.0.0.0/+8")
@example("10.0.0.0/٨")
@example("10.0.0.0/33")
@example("10.0.0.0/")
@example("10.0.0.0/8/8")
@example("10.0.0.0/" + "1" * 5000)
def test_a_cidr_is_an_address_and_a_decimal_length(text: str) -> None:
    """parse_cidr accepts the texts of ipaddress.IPv4Interface, minus missing lengths, netmasks and
    leading zeros.
    """
    length = text.partition("/")[2]
    strict = re.fullmatch("[0-9]|[1-9][0-9]", length) is not None
    assert _accepts(parse_cidr, text) == (strict and _accepts(ipaddress.IPv4Interface, text))
    if _accepts(parse_cidr, text):
        interface = ipaddress.IPv4Interface(text)
        assert parse_cidr(text) == (int(interface.ip), interface.network.prefixlen)


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 32))
def test_masks_and_cidr_text_are_the_standard_librarys(address: int, length: int) -> None:
    """Masking an address and writing the network gives the text of ipaddress.IPv4Network."""
    network = ipaddress.IPv4Network((address, length), strict=False)
    assert netmask(length) == int(network.netmask)
    assert str(Prefix(IPV4, address, length).masked) == str(network)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "it is empty"),
        (".", "the kernel refuses it"),
        ("..", "the kernel refuses it"),
        ("all", "the kernel refuses it"),
        ("default", "the kernel refuses it"),
        ("toolong123456789a", "it has 17 bytes, but the kernel allows only 15"),
        ("ü" * 8, "it has 16 bytes, but the kernel allows only 15"),
        ("à", "the kernel reads one of its bytes as white space"),
        ("-x", "a leading '-' looks like an option"),
        ("a/b", "'/' is not allowed"),
        ("eth0:1", "':' is not allowed"),
        ("eth0 eth1", "white space is not allowed"),
        ("eth0\n", "white space is not allowed"),
        ("eth0\u2003", "white space is not allowed"),
        ("$(whoami)", "'$' is not allowed"),
        ("a|b", "'|' is not allowed"),
        ('a"b', "'\"' is not allowed"),
        ("a'b", '"\'" is not allowed'),
        ("eth%d", "'%' is not allowed"),
        ("a\x1bb", "'\\x1b' is not printable"),
        ("a\u202eb", "'\\u202e' is not printable"),
        ("a\ud800", "'\\ud800' is not printable"),
    ],
)
def test_device_names_are_refused_with_the_reason(name: str, problem: str) -> None:
    """A device name that the kernel refuses, or that a shell or `ip` could misread, is refused with
    the reason.
    """
    with pytest.raises(ValueError, match=NO_DEVICE_NAME) as caught:
        check_device_name(name)
    assert str(caught.value) == f"{name!r} {NO_DEVICE_NAME}{problem}; see: ip link"


def _kernel_accepts(name: bytes) -> bool:
    """dev_valid_name() of net/core/dev.c, with the kernel's isspace(), which reads Latin-1."""
    return (
        0 < len(name) < 16
        and name not in {b".", b".."}
        and not set(name) & set(b"/:\t\n\v\f\r \xa0")
    )


@given(st.text(max_size=17) | st.text("ab.-_+@é/: \t$à语", max_size=17))
def test_no_name_is_accepted_that_the_kernel_refuses(name: str) -> None:
    """An accepted device name is one for the kernel, has no special character of a shell, and is
    printable.
    """
    if _accepts(check_device_name, name):
        assert _kernel_accepts(name.encode())
        assert name.isprintable()
        assert not set(name) & set("\"'`$|&;<>()[]{}*?!#~\\%=^,")
        assert not name.startswith("-")


@given(st.text("abXY01._+@-éü语", max_size=17))
@example("x" * 15)
def test_harmless_names_are_accepted_exactly_if_the_kernel_does(name: str) -> None:
    """A device name without special characters is accepted exactly if the kernel accepts it and it
    does not begin with '-'.
    """
    assert _accepts(check_device_name, name) == (
        _kernel_accepts(name.encode()) and not name.startswith("-")
    )
