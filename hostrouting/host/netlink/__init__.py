"""The kernel over rtnetlink, in packed messages: routes, rules, devices, neighbours, events."""

from hostrouting.host.netlink.backend import NetlinkBackend

__all__ = ["NetlinkBackend"]
