"""The operator's JSON as frozen values: its sections, the rules for its fields, the wire format.

sections    HostRoutingConfig, and the sections of the pair
siblings    the sections of the siblings, and of Watch
rules       one function for each kind of field: it returns the normalised value, or raises
wire        JSON to values and back: types, unknown keys, all errors at once
"""

from __future__ import annotations

from hostrouting.config.sections import (
    DEFAULT_ALLOWED_DEVS,
    DEFAULT_GATES,
    GATE_UNITS,
    OWN_UNITS,
    PRESETS,
    SECTIONS,
    HostRoutingConfig,
    OverlapMode,
    RouteOverlapConfig,
    StaticRoute,
    StaticRoutesConfig,
    require_config,
)
from hostrouting.config.siblings import (
    ProbeSNATConfig,
    Section,
    Sibling,
    StaleCNIConfig,
    StaleCNIForce,
    WatchConfig,
)

__all__ = [
    "DEFAULT_ALLOWED_DEVS",
    "DEFAULT_GATES",
    "GATE_UNITS",
    "OWN_UNITS",
    "PRESETS",
    "SECTIONS",
    "HostRoutingConfig",
    "OverlapMode",
    "ProbeSNATConfig",
    "RouteOverlapConfig",
    "Section",
    "Sibling",
    "StaleCNIConfig",
    "StaleCNIForce",
    "StaticRoute",
    "StaticRoutesConfig",
    "WatchConfig",
    "require_config",
]
