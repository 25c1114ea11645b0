"""Many nodes: what each is, and their verdicts where a fleet looks.

record      NodeRecord: a node as a line of JSON, taken on it and read elsewhere
verdict     prove_record: the proof of a recorded node, under any config
stream      lines of files in, verdicts and their summary out
metrics     the report of `check` for Prometheus
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.fleet.record import NodeRecord, take_record

if TYPE_CHECKING:
    from hostrouting.fleet.verdict import NodeVerdict, prove_record

__all__ = ["NodeRecord", "NodeVerdict", "prove_record", "take_record"]


if not TYPE_CHECKING:
    # A type checker would take any name for one of this module.
    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Imported late: a node that records itself proves nothing.
        from hostrouting.fleet import verdict

        return getattr(verdict, name)
