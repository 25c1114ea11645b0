"""The rules for the fields of the config: each is a function that returns the normalised value, or raises.

A rule takes a value from Python or JSON. Its ValueError continues a sentence that begins with the path of the field:
the expected value, the value found, and the correction. Rules are independent; a condition between fields is checked by
the value that has the fields, in `sections`.
"""

from hostrouting.config.rules.addresses import (
    cidr,
    destination,
    duration,
    expected_cidr,
    gateway,
    ipv4_cidr,
    ipv6_address,
    list_of,
    one_of,
    seconds,
    whole_number,
    write_duration,
)
from hostrouting.config.rules.names import OWN_UNITS, device, device_pattern, folder, gate, optional_device

__all__ = [
    "OWN_UNITS",
    "cidr",
    "destination",
    "device",
    "device_pattern",
    "duration",
    "expected_cidr",
    "folder",
    "gate",
    "gateway",
    "ipv4_cidr",
    "ipv6_address",
    "list_of",
    "one_of",
    "optional_device",
    "seconds",
    "whole_number",
    "write_duration",
]
