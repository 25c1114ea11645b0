"""The cleanup, as an entry in the list of a node's capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.boot.capability import Capability, Inquiry

if TYPE_CHECKING:
    from hostrouting.azure.stale_cni.task import CleanStaleCNI
    from hostrouting.base.findings import NodeFinding
    from hostrouting.boot.reconciler import Reconciler
    from phases import Context


def _task() -> type[CleanStaleCNI]:
    # Imported here because it is only needed if the section is enabled.
    from hostrouting.azure.stale_cni.task import CleanStaleCNI

    return CleanStaleCNI


def _findings(ctx: Context, inquiry: Inquiry) -> list[NodeFinding]:
    if not inquiry.config.stale_cni.enabled or not inquiry.host.is_live:
        return []
    findings, spared = _task()(inquiry.config, host=inquiry.host).findings(ctx)
    for verdict in spared:
        inquiry.spare(verdict.to_mapping())
    return findings


def _reconciler() -> type[Reconciler]:
    # Imported here because it is only needed by the watch.
    from hostrouting.azure.stale_cni.reconciler import StaleObjectReconciler

    return StaleObjectReconciler


STALE_CNI: Final = Capability(
    section="stale_cni",
    name="clean-stale-cni",
    task=_task,
    findings={"stale-cni": _findings},
    subject="leftovers of azure-vnet",
    reconciler=_reconciler,
)
