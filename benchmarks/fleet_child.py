"""How much a process needs that proves N recorded nodes.

fleet_child.py N; prints seconds, seconds of processor time, those of json.loads alone,
which takes its turn between the nodes, and its peak in kB. A third of the nodes is bad. The lines
are made of one as cheaply as possible, since their making counts, too.
"""

import gc
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hostrouting.config.sections import HostRoutingConfig
from hostrouting.fleet import NodeRecord
from hostrouting.fleet.stream import Summary, verdict_on
from hostrouting.net.links import Device, DeviceAddress
from hostrouting.net.routes import ObservedRoute
from hostrouting.net.rules import Rule

_OWN = "10.224.7.7"
_ROUTES = 64
_LOST = ObservedRoute.parse("172.16.8.0/22", "eth0", "10.224.0.1", protocol=142)


def _held(dev: str, address: str) -> Iterator[ObservedRoute]:
    own = address.partition("/")[0]
    network = own.rsplit(".", 2)[0]
    yield ObservedRoute.parse(f"{network}.0.0/16", dev, protocol=2, scope=253, source=own)
    yield ObservedRoute.parse(
        f"{own}/32", dev, table=255, kind="local", protocol=2, scope=254, source=own
    )
    yield ObservedRoute.parse(
        f"{network}.255.255/32", dev, table=255, kind="broadcast", protocol=2, scope=253, source=own
    )


def _node() -> NodeRecord:
    """Return a node with eight InfiniBand devices, one of which takes addresses that it should not."""
    cidrs = ["172.16.8.0/22", "10.0.0.0/16", "10.64.0.0/16"]
    route = {"destination": "172.16.8.0/22", "gateway": "10.224.0.1", "dev": "eth0"}
    section = {"expectedCidrs": cidrs, "mode": "STRICT"}
    held = {
        "eth0": [f"{_OWN}/16"],
        **{f"ib{number}": [f"172.{16 + number}.1.4/16"] for number in range(8)},
    }
    found = [ObservedRoute.parse("0.0.0.0/0", "eth0", "10.224.0.1", protocol=16, metric=100), _LOST]
    found += [one for dev, own in held.items() for address in own for one in _held(dev, address)]
    for number in range(_ROUTES - len(found)):
        destination = f"10.{64 + number // 65536}.{number // 256 % 256}.{number % 256}/32"
        found.append(
            ObservedRoute.parse(
                destination, "eth0", f"10.224.0.{1 + number % 200}", protocol=12, metric=20
            )
        )
    places = ((0, 255), (32766, 254), (32767, 253))
    return NodeRecord(
        hostname="node-7",
        config=HostRoutingConfig.from_mapping(
            {"routeOverlap": section, "staticRoutes": {"enabled": True, "routes": [route]}}
        ),
        devices=tuple(
            Device(dev, number, up=True, addresses=tuple(map(DeviceAddress.parse, own)))
            for number, (dev, own) in enumerate(held.items(), 2)
        ),
        rules=tuple(Rule(priority, table=table, protocol=2) for priority, table in places),
        routes=tuple(found),
        merged=True,
    )


def main(count: int) -> None:
    """Prove them, and print the measurement."""
    line = _node().to_line()
    lost = line.replace(b'"network":"172.16.8.0"', b'"network":"172.16.12.0"')

    parser = 0.0

    def lines() -> Iterator[tuple[str, bytes]]:
        nonlocal parser
        for number in range(count):
            own = b"10.224.%d.%d" % (number // 250 % 250, 2 + number % 250)
            text = (line if number % 3 else lost).replace(_OWN.encode(), own)
            text = text.replace(b"node-7", b"n%d" % number)
            # A timer of the verdicts leaves the clock of the process with the kernel's ticks alone.
            start = time.thread_time()
            json.loads(text)
            parser += time.thread_time() - start
            yield str(number), text

    # As in the command.
    gc.disable()
    summary = Summary()
    wall, cpu = time.perf_counter(), time.process_time()
    for verdict in map(verdict_on, lines()):
        summary.add(verdict)
    wall, cpu = time.perf_counter() - wall - parser, time.process_time() - cpu - parser
    assert (summary.counts["nodes"], summary.counts["lines"]) == (count, 0), summary
    peak = next(
        line.split()[1]
        for line in Path("/proc/self/status").read_text().splitlines()
        if "VmHWM" in line
    )
    print(wall, cpu, parser, peak)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
