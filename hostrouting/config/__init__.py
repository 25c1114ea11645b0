"""The operator's JSON as frozen values: its sections, the rules for its fields, the wire format.

sections    HostRoutingConfig, and the sections of the pair
siblings    the sections of the siblings, and of Watch
rules       one function for each kind of field: it returns the normalised value, or raises
wire        JSON to values and back: types, unknown keys, all errors at once
"""

from __future__ import annotations

from hostrouting.config.rules import OWN_UNITS
from hostrouting.config.schema import config_schema
from hostrouting.config.sections import (
    DEFAULT_ALLOWED_DEVS,
    DEFAULT_GATES,
    PRESETS,
    HostRoutingConfig,
    OverlapMode,
    RouteOverlapConfig,
    StaticRoute,
    StaticRoutesConfig,
    require_config,
)
from hostrouting.config.siblings import ProbeSNATConfig, StaleCNIConfig, StaleCNIForce, WatchConfig

__all__ = [
    "DEFAULT_ALLOWED_DEVS",
    "DEFAULT_GATES",
    "OWN_UNITS",
    "PRESETS",
    "HostRoutingConfig",
    "OverlapMode",
    "ProbeSNATConfig",
    "RouteOverlapConfig",
    "StaleCNIConfig",
    "StaleCNIForce",
    "StaticRoute",
    "StaticRoutesConfig",
    "WatchConfig",
    "config_schema",
    "require_config",
]
