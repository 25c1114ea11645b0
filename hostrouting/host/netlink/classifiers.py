"""The BPF programs that a device runs for packets: tc filters (rtnetlink) and tcx (bpf(2)).

tcx (Linux 6.6) is queried in the network namespace of the device. The names of programs need
CAP_SYS_ADMIN.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from typing import TYPE_CHECKING

from hostrouting.host.netlink.frames import Request, attributes
from hostrouting.host.netlink.libc import call_libc

if TYPE_CHECKING:
    from collections.abc import Iterable

_GETTFILTER = 46
_TCA_KIND = 1
_TCA_OPTIONS = 2
_TCA_BPF_NAME = 7
#: The directions of the qdisc clsact.
_INGRESS = 0xFFFFFFF2
_EGRESS = 0xFFFFFFF3

#: The number of bpf(2); on other architectures only tc filters are visible.
_BPF = {"x86_64": 321, "aarch64": 280}
_PROG_GET_FD_BY_ID = 13
_OBJ_GET_INFO_BY_FD = 15
_PROG_QUERY = 16
_TCX_INGRESS = 46
_TCX_EGRESS = 47
#: The kernel's limit for one device and direction.
_MOST_PROGRAMS = 64
#: Ids, revision and links of attached programs: `union bpf_attr` for BPF_PROG_QUERY.
_query = struct.Struct("=IIIIQIIQQQQ")
#: The length of the part of `struct bpf_prog_info` that has the name.
_INFO_LENGTH = 80
#: The position and length of the name.
_NAME_AT = 64
_NAME_LENGTH = 16
#: A kernel without tcx, without bpf(2), or a device without programs or that is gone.
_NOTHING_THERE = frozenset(
    {errno.EINVAL, errno.ENOSYS, errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP}
)


def program_names(index: int) -> frozenset[str]:
    """Return the names of the device's tcx programs, in and out, truncated to 15 bytes.

    Raise PermissionError if they may not be seen. A kernel without tcx has none.
    """
    if platform.machine() not in _BPF:
        return frozenset()
    identities = _programs(index, _TCX_INGRESS) + _programs(index, _TCX_EGRESS)
    return frozenset(map(_name, identities)) - {""}


def _bpf(command: int, request: object, length: int) -> int:
    return call_libc("syscall", _BPF[platform.machine()], command, request, length)


def _programs(index: int, direction: int) -> list[int]:
    ids = (ctypes.c_uint32 * _MOST_PROGRAMS)()
    request = ctypes.create_string_buffer(
        _query.pack(index, direction, 0, 0, ctypes.addressof(ids), _MOST_PROGRAMS, 0, 0, 0, 0, 0)
    )
    try:
        _bpf(_PROG_QUERY, request, _query.size)
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return []
        raise
    return ids[: _query.unpack_from(request)[5]]


def _name(identity: int) -> str:
    """Return the name of a program; empty if it is gone."""
    request = ctypes.create_string_buffer(struct.pack("=I8x", identity))
    try:
        descriptor = _bpf(_PROG_GET_FD_BY_ID, request, 12)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return ""
        raise
    try:
        info = ctypes.create_string_buffer(_INFO_LENGTH)
        packed = struct.pack("=IIQ", descriptor, _INFO_LENGTH, ctypes.addressof(info))
        _bpf(_OBJ_GET_INFO_BY_FD, ctypes.create_string_buffer(packed), len(packed))
    finally:
        os.close(descriptor)
    return info.raw[_NAME_AT : _NAME_AT + _NAME_LENGTH].partition(b"\0")[0].decode(errors="replace")


def filter_requests(index: int, dev: str) -> list[Request]:
    """Return requests for the packet filters of the device, ingress first."""
    return [
        Request(
            _GETTFILTER,
            struct.pack("=4xi4xI4x", index, parent),
            f"tc filter show dev {dev} {direction}",
        )
        for parent, direction in ((_INGRESS, "ingress"), (_EGRESS, "egress"))
    ]


def parse_bpf_names(payloads: Iterable[bytes]) -> set[str]:
    """Return the names of the BPF programs among packet filters, as they were attached."""
    names = set()
    for payload in payloads:
        fields = attributes(payload, 20)
        # A filter is shown twice: its priority without options, and each of its handles.
        options = fields.get(_TCA_OPTIONS, b"") if fields.get(_TCA_KIND) == b"bpf\0" else b""
        if name := attributes(options).get(_TCA_BPF_NAME):
            names.add(name.rstrip(b"\0").decode(errors="replace"))
    return names
