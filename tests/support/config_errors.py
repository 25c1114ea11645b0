"""The errors of a refused config, as paths and messages."""

from __future__ import annotations

from typing import Any

import pytest

from hostrouting.config import HostRoutingConfig
from hostrouting.exceptions import InvalidConfigError

__all__ = ["GOOD", "ROUTE", "errors", "errors_of_route"]


GOOD = {"destination": "10.0.0.0/8", "gateway": "10.224.0.1"}
ROUTE = "hostRouting.staticRoutes.routes[1]"


def errors(mapping: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidConfigError) as caught:
        HostRoutingConfig.from_mapping(mapping)
    return [(error.path, error.message) for error in caught.value.errors]


def errors_of_route(**fields: object) -> list[tuple[str, str]]:
    route = {"destination": "172.16.0.0/16", **fields}
    return errors({"staticRoutes": {"enabled": True, "routes": [GOOD, route]}})
