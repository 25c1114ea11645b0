"""The loop that people write with pyroute2, timed by itself: no process start, no import, no opening of the socket.

pyroute2_loop.py install|lookup N FIRST STEP LENGTH GATEWAY DEV; prints `WALL CPU DONE REFUSED`, as yardstick.c does.
"""

import sys
import time
from socket import AF_INET, inet_ntop

from pyroute2 import IPRoute


def main(mode: str, *words: str) -> None:
    """Do it, and print the times."""
    count, first, step, length = map(int, words[:4])
    addresses = [inet_ntop(AF_INET, (first + number * step).to_bytes(4, "big")) for number in range(count)]
    answers = 0
    with IPRoute() as ipr:
        device = ipr.link_lookup(ifname=words[5])[0]
        cpu, wall = time.process_time(), time.perf_counter()
        if mode == "install":
            for address in addresses:
                ipr.route("add", dst=f"{address}/{length}", gateway=words[4], oif=device, proto=142)
                answers += 1
        else:
            for address in addresses:
                answers += len(ipr.route("get", dst=address))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{wall:.9f} {cpu:.9f} {answers} 0")


if __name__ == "__main__":
    main(*sys.argv[1:])
