"""A BPF programme that does nothing, attached to a device the way tc does, or by tcx."""

import ctypes
import os
import platform
import socket
import struct

from hostrouting.host.netlink.conversation import Adapter, in_namespace
from hostrouting.host.netlink.frames import attribute, message

_BPF_NUMBERS = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH, _SCHED_CLS = 5, 8, 3
_TCX = {"in": 46, "out": 47}
#: `r0 = -1; exit`, which lets the packet pass.
_PROGRAM = struct.pack("=BBhi", 0xB7, 0, 0, -1) + struct.pack("=BBhi", 0x95, 0, 0, 0)
_NEWTFILTER, _REQUEST_CREATE_EXCL = 44, 0x601
_DIRECTIONS = {"in": 0xFFFFFFF2, "out": 0xFFFFFFF3}
_ETH_P_ALL = 0x0003


def why_no_tcx() -> str | None:
    """Why no programme can be attached by tcx here; None if one can."""
    reason = why_not()
    if reason is not None:
        return reason
    try:
        _bpf(16, struct.pack("=IIIIQIIQQQQ", 1, 46, 0, 0, 0, 0, 0, 0, 0, 0, 0))
    except OSError as error:
        return f"tcx does not work here (needs Linux 6.6): {error}"
    return None


def why_not() -> str | None:
    """Why no programme can be loaded here; None if one can."""
    try:
        os.close(load())
    except OSError as error:
        return f"bpf(2) does not work here: {error}"
    return None


def load(name: str = "loaded_as") -> int:
    """Load the programme; its descriptor."""
    code, licence = ctypes.create_string_buffer(_PROGRAM), ctypes.create_string_buffer(b"GPL")
    request = struct.pack(
        "=IIQQIIQII16s",
        *(_SCHED_CLS, len(_PROGRAM) // 8, ctypes.addressof(code), ctypes.addressof(licence)),
        *(0, 0, 0, 0, 0, name.encode()),
    )
    return _bpf(_PROG_LOAD, request)


def _bpf(command: int, request: bytes) -> int:
    number = _BPF_NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(f"the number of bpf(2) on {platform.machine()} is not known")
    libc = ctypes.CDLL(None, use_errno=True)
    answer: int = libc.syscall(number, command, ctypes.create_string_buffer(request), len(request))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer


def attach_by_tcx(netns: str, dev: str, direction: str, name: str) -> None:
    """Let tcx run the programme, loaded under that name; OSError (EINVAL) on kernels before 6.6."""
    descriptor = load(name)

    def attach_here() -> None:
        index = socket.if_nametoindex(dev)
        _bpf(_PROG_ATTACH, struct.pack("=IIIIIIQ", index, descriptor, _TCX[direction], 0, 0, 0, 0))

    try:
        in_namespace(netns, attach_here)
    finally:
        os.close(descriptor)


def attach(netns: str, dev: str, direction: str, name: str, *, priority: int) -> None:
    """Let tc run the programme under that name; the device has a clsact qdisc."""
    descriptor = load()
    try:
        with Adapter(netns=netns)._open() as kernel:
            index = {name: index for index, name in kernel.names().items()}[dev]
            info = priority << 16 | int.from_bytes(struct.pack(">H", _ETH_P_ALL), "little")
            options = attribute(6, struct.pack("=I", descriptor)) + attribute(
                7, name.encode() + b"\0"
            )
            payload = struct.pack("=BxxxiIII", 0, index, 0, _DIRECTIONS[direction], info)
            payload += attribute(1, b"bpf\0") + attribute(2, options)
            failures = kernel.deliver(
                [message(_NEWTFILTER, _REQUEST_CREATE_EXCL, payload, sequence=1 << 24)], 1
            )
            if failures:
                raise OSError(failures[0].errno, failures[0].reason)
    finally:
        os.close(descriptor)
