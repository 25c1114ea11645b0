"""What a check says about leftovers: each stale object is a finding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.exceptions import PermissionDeniedError
from hostrouting.findings import NodeFinding
from hostrouting.stale_cni.sweep import subject
from hostrouting.stale_cni.task import CleanStaleCNI

if TYPE_CHECKING:
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from hostrouting.stale_cni.sweep import Verdict
    from phases import Context

__all__ = ["check_stale_cni"]

_KIND: Final = "stale-cni"


def check_stale_cni(
    ctx: Context, config: HostRoutingConfig, host: Host, *, spared: list[Verdict] | None = None
) -> list[NodeFinding]:
    """A finding for each object that one reading takes for stale; none where the config does not ask for a sweep.

    What the reading leaves alone is added to `spared`.

    Where nothing was found, but not all could be seen or asked for lack of privilege, that is a
    `PermissionDeniedError`.
    """
    if not config.stale_cni.enabled or not host.is_live:
        return []
    task = CleanStaleCNI(config, host=host)
    reading = task.judge_now(ctx)
    if spared is not None:
        spared += task.spared
    stale = [verdict for verdict in reading.verdicts if verdict.kind == "stale"]
    if not stale and reading.ebtables.denied:
        raise PermissionDeniedError(
            "whether a removed CNI has left anything behind cannot be told without root (CAP_NET_ADMIN), "
            "for that is what it takes to read ebtables rules; nothing was found among neighbours and routes"
        )
    if not stale and reading.may_not_ask:
        raise PermissionDeniedError(
            "whether a removed CNI has left anything behind cannot be told without root (CAP_NET_RAW), "
            "for that is what it takes to ask pods that have been silent for long whether they are alive"
        )
    obstacle = task.obstacle()
    step = f"cannot be taken away now, for {obstacle}" if obstacle else "run: hostrouting apply CONFIG"
    return [NodeFinding(_KIND, subject(verdict.object), f"{verdict.reason}; {step}") for verdict in stale]
