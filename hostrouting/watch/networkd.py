"""Without a drop-in, systemd-networkd removes foreign routes of the devices that it manages.

The routes of hostrouting are foreign to networkd. docs/kernel-facts.md shows when it removes them,
with and without the drop-in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hostrouting.base.findings import NodeFinding, Severity
from hostrouting.boot.layout import DROP_IN_NAME, BootFile, read_asset
from hostrouting.config.optional import WatchConfig
from hostrouting.host.units import MASK, assignments
from hostrouting.static_routes.plan import plan_routes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Device, FileStore, Host
    from phases import Context

[DROP_IN_PATH] = WatchConfig.files
#: The folders of its configuration; a file of an earlier one replaces those of the same name.
_FOLDERS = (
    "/etc/systemd",
    "/run/systemd",
    "/usr/local/lib/systemd",
    "/usr/lib/systemd",
    "/lib/systemd",
)
_SECTION = "Network"
_KEY = "ManageForeignRoutes"
#: Known since systemd 249; an older one ignores it with a warning.
_KEY_OF_RULES = "ManageForeignRoutingPolicyRules"
#: How systemd writes a switch, in any case; it ignores any other text.
_SWITCHES = {
    **dict.fromkeys(("1", "yes", "y", "true", "t", "on"), True),
    **dict.fromkeys(("0", "no", "n", "false", "f", "off"), False),
}
#: The lines on a device that has a .network file.
_MANAGED = {b"ADMIN_STATE=configuring", b"ADMIN_STATE=configured", b"ADMIN_STATE=failed"}
_LATER = "at its next start, or when it reconfigures the device"


class ForeignRoutes(NamedTuple):
    """True if networkd manages foreign routes, so it removes them; the file with the setting."""

    are_managed: bool = True
    #: None for the default.
    path: str | None = None


def drop_in() -> BootFile:
    """Return the drop-in that makes networkd leave foreign routes in place."""
    return BootFile(DROP_IN_PATH, read_asset(__file__, DROP_IN_NAME))


def networkd_texts(files: FileStore, *coming: BootFile) -> dict[str, str]:
    """Return the texts of the configuration of networkd by path, in the order of its reading.

    Drop-ins that are `coming` count as installed in /etc.
    """
    texts: dict[str, str] = {}
    drop_ins = {file.path.rpartition("/")[2]: (file.path, file.content.decode()) for file in coming}
    for folder in _FOLDERS:
        path = f"{folder}/networkd.conf"
        if not texts and (text := _text(files, path)) is not None:
            texts[path] = text
        for name in files.names(f"{path}.d"):
            path = f"{folder}/networkd.conf.d/{name}"
            if name.endswith(".conf") and name[0] != "." and name not in drop_ins:
                text = _text(files, path)
                drop_ins |= {} if text is None else {name: (path, text)}
    return texts | dict(drop_ins[name] for name in sorted(drop_ins))


def _text(files: FileStore, path: str) -> str | None:
    # By the text of the link: an image has no /dev/null.
    if files.read_link(path) == MASK:
        return ""
    content = files.read(path)
    return None if content is None else content.decode(errors="replace").removeprefix("\ufeff")


def foreign_routes(texts: Mapping[str, str], *, wanted: str = _KEY) -> ForeignRoutes:
    r"""Return the setting in the texts of the configuration: the last valid one.

    >>> foreign_routes({"/etc/systemd/networkd.conf": "[Network]\nManageForeignRoutes=no\n"})
    ForeignRoutes(are_managed=False, path='/etc/systemd/networkd.conf')
    """
    setting = ForeignRoutes()
    for path, section, key, value in assignments(texts):
        if (section, key) == (_SECTION, wanted) and value.lower() in _SWITCHES:
            setting = ForeignRoutes(_SWITCHES[value.lower()], path)
    return setting


def networkd_findings(ctx: Context, config: HostRoutingConfig, host: Host) -> list[NodeFinding]:
    """Return findings for managed devices whose static routes networkd would remove.

    It removes policy rules of other programs, too. The drop-in counts as installed if the config
    wants it. Changes nothing, needs no root.
    """
    # The devices first: on most nodes networkd manages none, which saves a call of systemctl.
    managed = _managed(config, host) if config.static_routes.routes else []
    if not managed or not host.services.state(ctx, "systemd-networkd.service").is_running:
        return []
    texts = networkd_texts(host.files, *[drop_in()] * config.watch.keep_foreign_routes)
    removed = {_KEY: "its static routes"}
    # It leaves those of the kernel alone, and its own.
    rules = (rule for family in config.families for rule in host.routes.rules(family))
    if any(rule.protocol not in {2, 4} for rule in rules):
        removed[_KEY_OF_RULES] = "the policy rules of other programs"
    severity: Severity = "note" if config.watch.enabled else "warning"
    reasons = [
        f"systemd-networkd manages it, and removes {what} {_LATER}; {_remedy(config, setting, key)}"
        for key, what in removed.items()
        if (setting := foreign_routes(texts, wanted=key)).are_managed
    ]
    return [NodeFinding("networkd", dev, reason, severity) for dev in managed for reason in reasons]


def _remedy(config: HostRoutingConfig, setting: ForeignRoutes, key: str) -> str:
    if config.watch.keep_foreign_routes:
        return f"remove {key}= from {setting.path}, which counts more than {DROP_IN_PATH}"
    by = f"{key}= is on in {setting.path}" if setting.path else f"{key}= is on by default"
    more = "" if config.watch.enabled else "hostRouting.watch.enabled and "
    return f"{by}; set {more}hostRouting.watch.keepForeignRoutes to true"


def _managed(config: HostRoutingConfig, host: Host) -> list[str]:
    """Return the devices of static routes that networkd manages, by the files of sd-network."""
    managed = [link.name for link in host.routes.links() if _is_managed(link, host.files)]
    # Many routes are read only where it matters.
    if not managed:
        return []
    plan = plan_routes(config, host)
    devs = {route.dev for route in plan.section.routes}
    devs |= {route.dev for route in plan.wanted.values()}
    return [name for name in sorted(managed) if name in devs]


def _is_managed(link: Device, files: FileStore) -> bool:
    content = files.read(f"/run/systemd/netif/links/{link.ifindex}") or b""
    return not _MANAGED.isdisjoint(content.splitlines())
