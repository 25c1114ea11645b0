"""Talk to the kernel over rtnetlink: routes, rules, devices, neighbours and events."""

from hostrouting.host.netlink.backend import NetlinkBackend

__all__ = ["NetlinkBackend"]
