"""What `check` found on the node beside the routing of expected CIDRs: one value for all capabilities."""

from __future__ import annotations

from typing import Any

import attrs

__all__ = ["NodeFinding"]


@attrs.frozen
class NodeFinding:
    """One thing that is not as the config wants it: its kind, what it is about, and why that is wrong.

    >>> print(NodeFinding("probe-snat", "nft table ip6 azureSLBProbe", "is missing; run: hostrouting apply CONFIG"))
    probe-snat: nft table ip6 azureSLBProbe: is missing; run: hostrouting apply CONFIG
    """

    #: The capability that speaks: `probe-snat` or `stale-cni`.
    kind: str
    subject: str
    reason: str

    def to_mapping(self) -> dict[str, Any]:
        """For JSON."""
        return attrs.asdict(self)

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}: {self.reason}"
