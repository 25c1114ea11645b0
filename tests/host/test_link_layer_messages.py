"""Packed neighbours, against our parser."""

from hypothesis import given
from hypothesis import strategies as st

from hostrouting.host import Neighbour
from hostrouting.host.netlink.device_codec import pack_neighbour, parse_neighbours
from hostrouting.net.addresses import parse_address

macs = st.binary(min_size=6, max_size=6).map(lambda packed: packed.hex(":"))


@given(
    st.builds(
        Neighbour,
        address=st.ip_addresses().map(lambda address: str(parse_address(str(address)))),
        dev=st.just("azure0"),
        mac=macs,
        permanent=st.booleans(),
        flags=st.integers(0, 0xFFFF),
        protocol=st.integers(0, 255),
    )
)
def test_a_packed_neighbour_parses_to_itself(neighbour: Neighbour) -> None:
    """A packed neighbour has every detail."""
    assert parse_neighbours([pack_neighbour(neighbour, 3)], {3: "azure0"}).known == [neighbour]
