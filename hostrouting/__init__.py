"""Host routing of a Kubernetes node: right before it joins, kept right, and proven.

    config.py       what the operator wrote: HostRoutingConfig and its sections, frozen and never wrong
    exceptions.py   the error tree
    host/           the machine behind ports: Host, RouteBackend, and the adapters that reach it
    testing/        fakes, contract suites and strategies (extra `testing`)
    addresses.py    strict readers of addresses and device names; rules.py, wire.py: of the config

A name below is loaded when it is first asked for: `import hostrouting` costs next to nothing, and
whoever reads a config does not pay for the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hostrouting.config import (
        HostRoutingConfig,
        OverlapMode,
        ProbeSNATConfig,
        RouteOverlapConfig,
        StaleCNIConfig,
        StaticRoute,
        StaticRoutesConfig,
        WatchConfig,
    )
    from hostrouting.host import Host

__all__ = [
    "Host",
    "HostRoutingConfig",
    "OverlapMode",
    "ProbeSNATConfig",
    "RouteOverlapConfig",
    "StaleCNIConfig",
    "StaticRoute",
    "StaticRoutesConfig",
    "WatchConfig",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("hostrouting.host" if name == "Host" else "hostrouting.config"), name)


def __dir__() -> list[str]:
    return __all__
