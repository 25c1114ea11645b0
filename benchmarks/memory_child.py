"""How much memory a process takes that applies N routes.

memory_child.py DEV N FIRST STEP LENGTH GATEWAY; prints its peak in kB at each stage, a JSON object
on one line.

VmHWM belongs to this program alone, while getrusage's ru_maxrss begins with the memory of its
parent.
"""

import json
import sys
from pathlib import Path


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))


def main(dev: str, *numbers: str) -> None:
    """Grow, and note how far."""
    count, first, step, length, gateway = map(int, numbers)
    peaks = {"bare": _peak()}
    from hostrouting.host.netlink import NetlinkBackend
    from hostrouting.net.addresses import IPV4, Address
    from hostrouting.net.routes import Route, RouteChange

    via = Address(IPV4, gateway)
    peaks["imported"] = _peak()
    changes = [
        RouteChange.add(
            Route(network=first + number * step, prefix_length=length, gateway=via, dev=dev)
        )
        for number in range(count)
    ]
    peaks["built"] = _peak()
    NetlinkBackend().apply(changes)
    peaks["applied"] = _peak()
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(*sys.argv[1:])
