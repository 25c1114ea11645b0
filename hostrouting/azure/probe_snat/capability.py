"""The rules for IPv6 probes, as an entry in the list of a node's capabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hostrouting.base.errors import HostRoutingError
from hostrouting.base.findings import boot_file
from hostrouting.boot.capability import Capability, Inquiry, Program
from phases import Context, DeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostrouting.azure.probe_snat.task import ConfigureProbeSNAT
    from hostrouting.base.findings import NodeFinding
    from hostrouting.boot.installed_config import BootPart
    from hostrouting.boot.reconciler import Reconciler
    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host


def _task() -> type[ConfigureProbeSNAT]:
    # Imported here because it is only needed if the section is enabled.
    from hostrouting.azure.probe_snat.task import ConfigureProbeSNAT

    return ConfigureProbeSNAT


def _parts(config: HostRoutingConfig, host: Host | None) -> list[BootPart]:
    if not config.probe_snat.enabled:
        return []
    # Imported here because it is only needed if the section is enabled.
    from hostrouting.azure.probe_snat.detect import rules_to_install
    from hostrouting.azure.probe_snat.ruleset import boot_unit

    return [boot_unit(rules_to_install(config, host=host), required=config.probe_snat.required)]


def _installs(ctx: Context, config: HostRoutingConfig, host: Host) -> bool:
    """Return True if the node has IPv6, or is an image."""
    if not host.is_live or not config.probe_snat.enabled:
        return config.probe_snat.enabled
    try:
        return _task()(config, host=host).wants_rules(ctx)
    except (HostRoutingError, DeadlineExceededError):
        # Unknown; the apply will report why.
        ctx.check()
        return True


def _findings(ctx: Context, inquiry: Inquiry) -> Iterable[NodeFinding]:
    if not inquiry.config.probe_snat.enabled:
        return []
    task = _task()(inquiry.config, host=inquiry.host)
    if inquiry.host.is_live:
        return task.findings(ctx, asks=inquiry.queries)
    return map(boot_file, task.plan(ctx))


def _reconciler() -> type[Reconciler]:
    # Imported here because it is only needed by the watch.
    from hostrouting.azure.probe_snat.reconciler import ProbeReconciler
    from hostrouting.azure.probe_snat.ruleset import template

    # Read the template now, because the watch may outlive the file.
    template()
    return ProbeReconciler


PROBE_SNAT: Final = Capability(
    section="probe_snat",
    name="configure-probe-snat",
    task=_task,
    parts=_parts,
    installs=_installs,
    programs=(Program("nft", "nftables", "IPv6 load-balancer probes would not reach pods"),),
    findings={"probe-snat": _findings},
    subject="IPv6 probes",
    reconciler=_reconciler,
)
