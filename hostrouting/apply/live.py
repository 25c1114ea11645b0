"""A run on a host without boot files, which only changes routes, until the next boot.

No installed config says which routes such runs have added, so they keep a record in /run. A route
of protocol 142 that is neither in the config nor in the record belongs to somebody else.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from hostrouting.base.errors import HostInUseError, InvalidConfigError
from hostrouting.boot.layout import CONFIG_PATH, LIVE_RECORD, READY_UNIT, unit_path
from hostrouting.config.sections import HostRoutingConfig, StaticRoutesConfig
from hostrouting.net.routes import OUR_PROTOCOL, route_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostrouting.config.sections import StaticRoute
    from hostrouting.host import FileStore, Host
    from hostrouting.net.routes import RouteKey
    from hostrouting.static_routes.plan import RoutePlan


def refuse_others(host: Host, plan: RoutePlan | None) -> None:
    """Raise `HostInUseError` for an installed config, and for routes of ours that nobody recorded.

    Call it before the first change. The installed config and its watch would undo what the run
    does, and the routes may be all that keeps a node reachable.
    """
    if any(map(host.files.exists, (CONFIG_PATH, unit_path(READY_UNIT)))):
        raise HostInUseError(
            f"a config is installed on this host ({CONFIG_PATH}), and would undo this; "
            "nothing was changed",
            code="config-installed",
        )
    if plan is None:
        return
    known = {*plan.wanted, *plan.waiting, *_recorded(host.files)}
    own = (route for route in plan.observed if route.protocol == OUR_PROTOCOL)
    if routes := tuple(str(route) for route in own if route_key(route) not in known):
        raise HostInUseError(
            "this host has routes of hostrouting that are neither in this config nor from an "
            f"earlier run without boot files: {'; '.join(routes)}; nothing was changed",
            code="other-routes",
            routes=routes,
        )


def record(host: Host, plan: RoutePlan) -> None:
    """Record the routes of a config, and the recorded ones that are still there.

    Call it before the first change: a run that is killed leaves no route that is not recorded.
    """
    there = {*map(route_key, plan.observed)}
    routes = {key: route for key, route in _recorded(host.files).items() if key in there}
    routes |= {route.route_key: route for route in plan.section.routes}
    section = StaticRoutesConfig(enabled=True, routes=tuple(routes.values()))
    content = json.dumps(HostRoutingConfig(static_routes=section).to_mapping())
    host.files.write(LIVE_RECORD, content.encode(), mode=0o644)


def _recorded(files: FileStore) -> Mapping[RouteKey, StaticRoute]:
    content = files.read(LIVE_RECORD)
    with suppress(InvalidConfigError):
        routes = HostRoutingConfig.from_json(content or b"{}").static_routes.routes
        return {route.route_key: route for route in routes}
    return {}
