"""Devices that lose their carrier: pairs whose other end goes down."""

import json

from support.patience import wait_until
from support.routers import WiredNode

from hostrouting.testing import KernelNode


def add_pair(node: KernelNode, dev: str, *, carrier: bool) -> None:
    """Add a device whose other end is in the same namespace; without carrier that end is down."""
    node.ip(f"link add {dev} type veth peer name", _far(dev))
    if carrier:
        node.set_up(_far(dev))
    node.set_up(dev)


def add_pod(node: KernelNode, pods: KernelNode) -> None:
    """Add a device whose other end is in another namespace, as that of a pod."""
    node.ip(f"link add pod0 type veth peer name eth0 netns {pods.name}")


def unplug(node: KernelNode, dev: str) -> None:
    """Take the carrier from a device, and wait until the kernel has told its routes."""
    if isinstance(node, WiredNode):
        node.far.set_up(dev, up=False)
    else:
        node.set_up(_far(dev), up=False)
    wait_until(lambda: _state(node, dev) != "UP", f"the loss of the carrier of {dev}")


def _state(node: KernelNode, dev: str) -> str:
    [link] = json.loads(node.ip(f"-j link show dev {dev}"))
    return str(link["operstate"])


def _far(dev: str) -> str:
    return f"{dev}-far"
