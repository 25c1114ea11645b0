"""The namespace that everything happens in, and the tables that are put there."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from benchmarks.measure import BenchmarkError, printed
from hostrouting.host import Address, Route
from hostrouting.net.addresses import parse_ipv4

#: Networks 11.0.0.0/24, 11.0.1.0/24, ...: 100,000 of them end at 12.134.159.0/24.
FIRST = parse_ipv4("11.0.0.0")
STEP = 256
LENGTH = 24

#: Devices with the address and the gateway that each has; two veth pairs.
_PLACES = {
    "bench0": ("192.0.2.1", "192.0.2.2"),
    "bench1": ("198.51.100.1", "198.51.100.2"),
    "bench2": ("203.0.113.1", "203.0.113.2"),
    "bench3": ("198.18.0.1", "198.18.0.2"),
}
DEVICE = "bench0"
ADDRESS, GATEWAY = _PLACES[DEVICE]
IPV6_GATEWAY = "fd00:1::1"
_IPV6_ADDRESS = "fd00:1::4/64"

#: Selects the routes of every case, whatever their mark.
EVERYBODYS = ("table", "main", "root", "11.0.0.0/8")
_OWN_ROUTES = ("table", "main", "proto", "142")

_SELF = Path("/proc/self/ns/net")
_MOUNTS = Path("/proc/self/mounts")
#: By this name the mount on /run is recognised.
_RUN_NAME = "hostrouting-bench"
#: What is written to /run, /etc and /var/lib is gone with the benchmark.
_OWN_FILES = f"""
mount -t tmpfs -o mode=0755 {_RUN_NAME} /run
for folder in etc var/lib; do
    mkdir -p /run/changes/$folder /run/work/$folder
    mount -t overlay -o lowerdir=/$folder,upperdir=/run/changes/$folder,workdir=/run/work/$folder none /$folder
done
rm -rf /etc/aks-flex-node
"""
_INSIDE = ("unshare", "--net", "--mount", "sh", "-ec")
_TOOLS = ("ip", "unshare", "mount", "bash", "awk")


def namespace() -> str:
    """The network namespace that this process is in."""
    return str(_SELF.readlink())


def start_inside(argv: Sequence[str]) -> NoReturn:
    """Become the same program in a network namespace, and with files in /run and /etc, that end
    with it.
    """
    outside = f"--outside={namespace()}"
    words = [*_INSIDE, f'{_OWN_FILES} exec "$@"', "sh", sys.executable, *argv]
    os.execvp("unshare", [*words, outside])  # noqa: S606  # the shell gets words, no text of this program


def has_own_run() -> bool:
    """Return whether /run is the one of `start_inside`."""
    return f"{_RUN_NAME} /run tmpfs " in _MOUNTS.read_text()


def demand_own_run() -> None:
    """Fail unless /run is the benchmark's: the boot scripts leave their markers there."""
    if not has_own_run():
        raise BenchmarkError(
            "the boot scripts would leave their markers in this machine's own /run"
        )


def why_not() -> str | None:
    """Return why nothing can be measured here, or None."""
    if os.geteuid() != 0:
        return "making a network namespace needs root"
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            return f"there is no `{tool}`"
    if subprocess.run([*_INSIDE, _OWN_FILES], check=False, capture_output=True).returncode:
        return "this root may not make network namespaces, or not mount a separate /run, /etc and /var/lib"
    return None


def build() -> None:
    """Make the devices, of which the namespace of `start_inside` has none."""
    lines = [
        "link set lo up",
        "link add bench0 type veth peer name bench1",
        "link add bench2 type veth peer name bench3",
    ]
    for device, (address, gateway) in _PLACES.items():
        lines += [f"address add {address}/24 dev {device}", f"link set {device} up"]
        # A node has its gateway's address; `check` would wait for the answer of one that is
        # unresolved.
        lines += [f"neigh add {gateway} lladdr 02:00:00:00:00:01 nud permanent dev {device}"]
    ip_batch(lines)
    # The kernel may take a second to see a carrier, and until then shows routes as 'linkdown'.
    deadline = time.monotonic() + 10
    while "linkdown" in _shown("table", "all"):
        if time.monotonic() > deadline:
            raise BenchmarkError("a veth pair has no carrier after 10 s")
        time.sleep(0.05)


@contextmanager
def default_route() -> Iterator[None]:
    """Give the node a default route, as every node has one, until the end of the block."""
    route = f"default via {GATEWAY} dev {DEVICE}"
    ip_batch([f"route add {route}"])
    try:
        yield
    finally:
        ip_batch([f"route delete {route}"])


@contextmanager
def default_routes() -> Iterator[None]:
    """Give the node a default route of each family, until the end of the block."""
    lines = [
        f"-6 address {{}} {_IPV6_ADDRESS} dev {DEVICE} nodad",
        # As in `build`.
        f"neigh {{}} {IPV6_GATEWAY} lladdr 02:00:00:00:00:01 nud permanent dev {DEVICE}",
        f"-6 route {{}} default via {IPV6_GATEWAY} dev {DEVICE}",
    ]
    for line in lines:
        printed("ip", *line.format("add").split())
    try:
        with default_route():
            yield
    finally:
        for line in reversed(lines):
            printed("ip", *line.format("delete").replace(" nodad", "").split())


def clean() -> None:
    """Remove all our routes, and let the kernel free them before the next measurement."""
    printed("ip", "-6", "route", "flush", *_OWN_ROUTES)
    flush(*_OWN_ROUTES)


def sweep() -> None:
    """Remove the routes of all programs, and let the kernel free them."""
    flush(*EVERYBODYS)


def flush(*selection: str) -> None:
    """Remove the selected routes, and let the kernel free them."""
    printed("ip", "-4", "route", "flush", *selection)
    time.sleep(0.02)


def check_installed(count: int, selection: Sequence[str] = _OWN_ROUTES) -> None:
    """BenchmarkError unless `count` of our routes are there, or of those of another selection."""
    found = _shown(*selection).count("\n")
    if selection == _OWN_ROUTES:
        found += printed("ip", "-6", "route", "show", *selection).count("\n")
    if found != count:
        raise BenchmarkError(f"expected {count} routes, the kernel has {found}")


def fill(routes: Iterable[Route]) -> None:
    """Replace all our routes by these."""
    clean()
    ip_batch(f"route add {route}" for route in routes)


def ip_batch(lines: Iterable[str]) -> None:
    """Run many `ip` commands in one process."""
    printed("ip", "-batch", "-", input="".join(f"{one}\n" for one in lines))


def _shown(*selection: str) -> str:
    return printed("ip", "-4", "route", "show", *selection)


def uniform(count: int) -> list[Route]:
    """`count` networks through one gateway, as nodes have them."""
    gateway = Address.parse(GATEWAY)
    return [
        Route(network=FIRST + number * STEP, prefix_length=LENGTH, gateway=gateway, dev=DEVICE)
        for number in range(count)
    ]
