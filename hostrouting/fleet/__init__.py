"""Many nodes: record each, and check the records elsewhere.

record      NodeRecord: a node as a line of JSON, recorded on the node and read elsewhere
verdict     check_record: check a recorded node against any config
stream      lines of files in, verdicts and their summary out
metrics     the report of `check` for Prometheus
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.fleet.record import NodeRecord, take_record

if TYPE_CHECKING:
    from hostrouting.fleet.verdict import NodeVerdict, check_record

__all__ = ["NodeRecord", "NodeVerdict", "check_record", "take_record"]


if not TYPE_CHECKING:
    # Type checkers would accept any name of this module.
    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Imported here because it is not needed to record a node.
        from hostrouting.fleet import verdict

        return getattr(verdict, name)
