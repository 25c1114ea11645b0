"""The kernel over rtnetlink, packed and read by hand: routes, rules, devices, neighbours, IPv6, events, probes."""

from __future__ import annotations

from hostrouting.host.netlink.backend import NetlinkBackend

__all__ = ["NetlinkBackend"]
