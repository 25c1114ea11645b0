"""The sweep in the list of a node's capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.boot.capability import Capability, Inquiry
from phases import task

if TYPE_CHECKING:
    import logging

    from hostrouting.azure.stale_cni.task import CleanStaleCNI
    from hostrouting.base.findings import NodeFinding
    from hostrouting.boot.keeper import SiblingKeeper
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import Host
    from phases import Context, Task


def _task() -> type[CleanStaleCNI]:
    from hostrouting.azure.stale_cni.task import CleanStaleCNI

    return CleanStaleCNI


def _restore(config: HostRoutingConfig, host: Host, logger: logging.Logger) -> Task:
    sweep = _task()(config, host=host, logger=logger)
    return task("restore-stale-cni", plan=sweep.plan_undo)(sweep.undo)


def _findings(ctx: Context, inquiry: Inquiry) -> list[NodeFinding]:
    if not inquiry.config.stale_cni.enabled or not inquiry.host.is_live:
        return []
    findings, spared = _task()(inquiry.config, host=inquiry.host).findings(ctx)
    for verdict in spared:
        inquiry.spare(verdict.to_mapping())
    return findings


def _keeper() -> type[SiblingKeeper]:
    from hostrouting.azure.stale_cni.keeper import StaleObjectKeeper

    return StaleObjectKeeper


STALE_CNI: Final = Capability(
    section="stale_cni",
    name="clean-stale-cni",
    task=_task,
    restore=_restore,
    precedes_proof=True,
    findings={"stale-cni": _findings},
    subject="leftovers of azure-vnet",
    keeper=_keeper,
)
