"""Many nodes: what each is, and their verdicts where a fleet looks.

record      Record: a node as a line of JSON, taken on it and read elsewhere
verdict     prove_record: the proof of a recorded node, under any config
stream      lines of files in, verdicts and their summary out; in several processes if asked for
metrics     the report of `check` for Prometheus
"""

from __future__ import annotations

from hostrouting.fleet.record import Record, take_record
from hostrouting.fleet.verdict import Verdict, prove_record

__all__ = ["Record", "Verdict", "prove_record", "take_record"]
