"""A device of link type 32, as IP over InfiniBand has: a tun, which lets a program choose the type."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hostrouting.testing import KernelNode

#: TUNSETIFF (IFF_TUN | IFF_NO_PI), TUNSETLINK. The device is there, and has a carrier, as long as
#: the program runs.
_PROGRAM = """
import fcntl, struct, sys
with open("/dev/net/tun", "r+b", buffering=0) as tun:
    fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", sys.argv[1].encode(), 0x1001))
    fcntl.ioctl(tun, 0x400454CD, 32)
    print("made", flush=True)
    sys.stdin.read()
"""


@contextmanager
def infiniband(namespace: str, name: str, address: str) -> Iterator[None]:
    """Make such a device in a namespace, up and with an address, until the end of the block."""
    enter = ["nsenter", f"--net={namespace}"]
    pipe = subprocess.PIPE
    argv = [*enter, sys.executable, "-IS", "-c", _PROGRAM, name]
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "made\n"
        for words in (f"address add {address} dev {name}", f"link set {name} up"):
            subprocess.run([*enter, "ip", *words.split()], check=True)
        yield
        # The end of its input ends it.
        program.communicate()


def namespace_of(node: KernelNode) -> str:
    """Return the path of a node's namespace."""
    return f"/run/netns/{node.name}"
