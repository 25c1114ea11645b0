"""What a check says about leftovers: each stale object is a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.findings import NodeFinding
from hostrouting.stale_cni.sweep import subject
from hostrouting.stale_cni.task import CleanStaleCNI

if TYPE_CHECKING:
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from phases import Context

__all__ = ["check_stale_cni"]

_KIND: Final = "stale-cni"


def check_stale_cni(ctx: Context, config: HostRoutingConfig, host: Host) -> list[NodeFinding]:
    """A finding for each object that one reading takes for stale; none where the config does not ask for a sweep."""
    if not config.stale_cni.enabled or not host.is_live:
        return []
    stale = CleanStaleCNI(config, host=host).stale_now(ctx)
    return [NodeFinding(_KIND, subject(verdict.object), verdict.reason) for verdict in stale]
