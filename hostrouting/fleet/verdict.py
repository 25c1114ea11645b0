"""The proof of a recorded node: a pure function of record and config, with a small result."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs

from hostrouting.check import NodeReport
from hostrouting.fib import UnknownDecisionError
from hostrouting.forecast import foreseen
from hostrouting.net.addresses import IPV6
from hostrouting.route_overlap.task import announced_fabric, prove_config, prove_now
from hostrouting.static_routes import ConfigureStaticRoutes
from phases import Context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.config import HostRoutingConfig
    from hostrouting.findings import Severity
    from hostrouting.fleet.record import Record
    from hostrouting.route_overlap import OverlapReport

#: What only the node itself can answer.
_NOT_ASKED: Final = ("units and gates", "boot files", "probes and leftovers", "silent IPv4 routers")
_NOT_ASKED_OF_IPV6: Final = ("silent IPv6 gateways", "the source of each IPv6 packet", "link-local addresses")


class Reason(NamedTuple):
    """Why a node is not right; `cidr` and `dev` are empty if it is not about addresses or a device."""

    severity: Severity
    cidr: str
    kind: str
    dev: str
    text: str


@attrs.frozen(kw_only=True)
class Verdict:
    """The verdict on a recorded node."""

    #: Or the place of a line that is no record.
    hostname: str
    is_record: bool = True
    reasons: tuple[Reason, ...] = ()
    #: Why there is no proof.
    undecided: str = ""
    not_asked: tuple[str, ...] = _NOT_ASKED
    #: Of a plan: the number of changed routes, and if the proof fails without them.
    changes: int = 0
    overlaps_now: bool = False

    @property
    def severities(self) -> frozenset[str]:
        """The severities of the reasons."""
        return frozenset(reason.severity for reason in self.reasons)

    @property
    def ok(self) -> bool:
        """True if the proof is made, and there is no error."""
        return not self.undecided and "error" not in self.severities

    def to_mapping(self) -> dict[str, Any]:
        """Return the verdict for JSON."""
        told = attrs.asdict(self, recurse=False)
        return {**told, "ok": self.ok, "reasons": [reason._asdict() for reason in self.reasons]}

    def __str__(self) -> str:
        told = [self.undecided, *(reason.text for reason in self.reasons if reason.severity != "note")]
        first, *more = [*filter(None, told), "right"]
        return f"{self.hostname}: {first}{f'; and {len(more) - 1} more' if more[1:] else ''}"


def prove_record(record: Record, config: HostRoutingConfig | None = None, *, planned: bool = False) -> Verdict:
    """Return what `check` finds of the routing of a recorded node, under its own config if none is given.

    With `planned`, return what `plan` foretells; an address that would be worse off has a reason of the kind `worse`.
    """
    used = config or record.config
    if used is None:
        told = "its installed config is damaged" if record.checksum else "no config is installed"
        return Verdict(hostname=record.hostname, reasons=(Reason("error", "", "not-applied", "", told),))
    model, setting, ctx = record.fib, used.route_overlap.fabric, Context()
    host = record.host_of(model)
    make = partial(Verdict, hostname=record.hostname)
    if IPV6 in used.families:
        make = partial(make, not_asked=(*_NOT_ASKED, *_NOT_ASKED_OF_IPV6))
    fabric = record.fabric if setting == "auto" else announced_fabric(ctx, setting, host)
    routes = ConfigureStaticRoutes(used, host=host)
    try:
        if not planned:
            report = prove_now(used, fabric, host)
            # A config that is not applied yet has no routes to be lost.
            notes = report.notes if config else (*report.notes, *routes.findings(ctx))
            return make(
                reasons=(*_of_proof(report, used), *(Reason(n.severity, "", n.kind, "", n.text) for n in notes))
            )
        changes, stuck = routes.planned()
        before = prove_config(used, fabric, model)
    except UnknownDecisionError as error:
        return make(undecided=str(error))
    forecast = foreseen(used, fabric, model, changes, stuck, before=before)
    return make(
        undecided=forecast.undecided,
        changes=len(changes),
        overlaps_now=not before.ok,
        reasons=(
            *(_of_proof(forecast.report, used) if forecast.report else ()),
            *(Reason("error", "", "worse", "", line) for line in forecast.worse),
        ),
    )


def _of_proof(report: OverlapReport, config: HostRoutingConfig) -> Iterator[Reason]:
    severity: Severity = "warning" if NodeReport(overlap=report, mode=config.route_overlap.mode).ok else "error"
    for cidr, found in report.findings:
        yield Reason(severity, cidr, found.kind, found.dev or "", found.line(cidr))
