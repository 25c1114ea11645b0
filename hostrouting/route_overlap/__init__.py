"""Route overlap: does every address that the cluster expects leave by the node's own interface?

proof       prove_egress: where the answer can change, what the kernel says there, what is wrong with it
blockers    the route or rule behind a refusal
suggest     the fewest routes that mend the findings
report      OverlapReport: what was found, as value, JSON and text
task        CheckRouteOverlap: persists the check, proves, leaves the marker
script      the same proof for every boot, in bash and ip alone
"""

from __future__ import annotations

from hostrouting.route_overlap.proof import Part, parts_of, prove_egress
from hostrouting.route_overlap.report import CidrReport, Finding, OverlapReport, SuggestedRoute
from hostrouting.route_overlap.script import render_script
from hostrouting.route_overlap.task import CheckRouteOverlap, check_now

__all__ = [
    "CheckRouteOverlap",
    "CidrReport",
    "Finding",
    "OverlapReport",
    "Part",
    "SuggestedRoute",
    "check_now",
    "parts_of",
    "prove_egress",
    "render_script",
]
