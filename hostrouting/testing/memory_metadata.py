"""The cloud's description of a machine, in memory."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from hostrouting.exceptions import BackendError
from hostrouting.testing.faults import Faulty

if TYPE_CHECKING:
    from collections.abc import Sequence

    from phases import Context

__all__ = ["MemoryMetadata", "network_interface"]


def network_interface(*, ipv6: Sequence[str] = (), mac: str = "000D3A123456") -> dict[str, Any]:
    """Return one network interface in the cloud's form; a machine's description is a list of them.

    >>> network_interface(ipv6=["fd00::4"])["ipv6"]
    {'ipAddress': [{'privateIpAddress': 'fd00::4'}]}
    """
    return {
        "ipv4": {
            "ipAddress": [{"privateIpAddress": "10.224.0.4", "publicIpAddress": ""}],
            "subnet": [{"address": "10.224.0.0", "prefix": "16"}],
        },
        "ipv6": {"ipAddress": [{"privateIpAddress": address} for address in ipv6]},
        "macAddress": mac,
    }


class MemoryMetadata(Faulty):
    """The cloud's description of a fake machine: by default one interface with an IPv6 address.

    By default, `fail_at` says that there is no answer.

    It implements `InstanceMetadata`.

    >>> from phases import Context
    >>> metadata = MemoryMetadata([network_interface()])
    >>> metadata.network_interfaces(Context())[0]["ipv6"]
    {'ipAddress': []}
    """

    def __init__(self, document: object = None) -> None:
        super().__init__(BackendError("the instance metadata service gave no answer"))
        #: The answer; any JSON value.
        self.document: Any = [network_interface(ipv6=["fd00:10:224::4"])] if document is None else document
        #: The error to raise instead of every answer.
        self.error: BackendError | None = None

    def network_interfaces(self, ctx: Context) -> Any:
        """See `InstanceMetadata.network_interfaces`."""
        self._begin(ctx, "network_interfaces")
        if self.error is not None:
            raise self.error
        return copy.deepcopy(self.document)
