"""systemd-networkd, which removes foreign routes of the devices that it manages; the drop-in that tells it not to.

Foreign to networkd are the routes of hostrouting, too. docs/kernel-facts.md says when it removes
them, with and without the drop-in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from hostrouting.base.findings import NodeFinding
from hostrouting.boot import DROP_IN_NAME, NETWORKD_FOLDER, BootFile, read_asset
from hostrouting.host.units import MASK, assignments
from hostrouting.static_routes import resolve
from hostrouting.static_routes.account import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hostrouting.base.findings import Severity
    from hostrouting.config import HostRoutingConfig
    from hostrouting.host import FileStore, Host
    from phases import Context

DROP_IN_PATH: Final = f"{NETWORKD_FOLDER}/{DROP_IN_NAME}"
_UNIT: Final = "systemd-networkd.service"
#: The folders of its configuration; a file of an earlier one replaces those of the same name.
_FOLDERS: Final = (
    "/etc/systemd",
    "/run/systemd",
    "/usr/local/lib/systemd",
    "/usr/lib/systemd",
    "/lib/systemd",
)
_SECTION: Final = "Network"
_KEY: Final = "ManageForeignRoutes"
#: Known since systemd 249; an older one ignores it with a warning.
_KEY_OF_RULES: Final = "ManageForeignRoutingPolicyRules"
#: How systemd writes a switch, in any case; it ignores any other text.
_SWITCHES: Final = {
    **dict.fromkeys(("1", "yes", "y", "true", "t", "on"), True),
    **dict.fromkeys(("0", "no", "n", "false", "f", "off"), False),
}
#: The states of a device that has a .network file.
_MANAGED: Final = frozenset({"configuring", "configured", "failed"})
_LATER: Final = "at its next start, or when it reconfigures the device"


class ForeignRoutes(NamedTuple):
    """True if networkd manages foreign routes, which means that it removes them; and the file that says so."""

    are_managed: bool = True
    #: None for the default.
    path: str | None = None


def drop_in() -> BootFile:
    """Return the drop-in that makes networkd leave foreign routes in place, the same on every machine."""
    return BootFile(DROP_IN_PATH, read_asset(__file__, DROP_IN_NAME))


def networkd_texts(files: FileStore, *coming: BootFile) -> dict[str, str]:
    """Return the texts of the configuration of networkd by path, in the order in which it reads them.

    Drop-ins that are `coming` count as installed in /etc.
    """
    main = (f"{folder}/networkd.conf" for folder in _FOLDERS)
    candidates = [
        next(((path, text) for path in main if (text := _text(files, path)) is not None), None)
    ]
    drop_ins = {file.path.rpartition("/")[2]: (file.path, file.content.decode()) for file in coming}
    for folder in _FOLDERS:
        for name in files.names(f"{folder}/networkd.conf.d"):
            path = f"{folder}/networkd.conf.d/{name}"
            if name.endswith(".conf") and name[0] != "." and name not in drop_ins:
                text = _text(files, path)
                drop_ins |= {} if text is None else {name: (path, text)}
    candidates += [found for _, found in sorted(drop_ins.items())]
    return dict(found for found in candidates if found is not None)


def _text(files: FileStore, path: str) -> str | None:
    # By the text of the link: an image has no /dev/null.
    if files.read_link(path) == MASK:
        return ""
    content = files.read(path)
    return None if content is None else content.decode(errors="replace").removeprefix("\ufeff")


def foreign_routes(texts: Mapping[str, str], *, wanted: str = _KEY) -> ForeignRoutes:
    r"""Return the setting by the texts of the configuration; the last one that systemd can read counts.

    >>> foreign_routes({"/etc/systemd/networkd.conf": "[Network]\nManageForeignRoutes=no\n"})
    ForeignRoutes(are_managed=False, path='/etc/systemd/networkd.conf')
    """
    found = ForeignRoutes()
    for path, section, key, value in assignments(texts):
        if (section, key) == (_SECTION, wanted) and value.lower() in _SWITCHES:
            found = ForeignRoutes(_SWITCHES[value.lower()], path)
    return found


def networkd_findings(ctx: Context, config: HostRoutingConfig, host: Host) -> list[NodeFinding]:
    """Return a finding for each device of a static route that networkd manages, if it would remove the route.

    So it does for policy rules of other programs, if there are any. The drop-in counts as installed
    if the config asks for it. Changes nothing, needs no root.
    """
    # The devices first: on most nodes networkd manages none, and systemd need not be asked.
    managed = _managed(host, _devices(config, host)) if config.static_routes.routes else []
    if not managed or not host.services.state(ctx, _UNIT).is_running:
        return []
    texts = networkd_texts(host.files, *[drop_in()] * config.watch.keep_foreign_routes)
    removed = {_KEY: "its static routes"}
    # It leaves those of the kernel alone, and its own.
    if any(
        rule.protocol not in {2, 4}
        for family in config.families
        for rule in host.routes.rules(family)
    ):
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
    by = f"{key}= is on, as {setting.path} says" if setting.path else f"{key}= is on by default"
    return f"{by}; set hostRouting.watch.enabled and hostRouting.watch.keepForeignRoutes to true"


def _devices(config: HostRoutingConfig, host: Host) -> set[str]:
    """Return the devices by which the static routes leave."""
    routes = config.static_routes.routes
    without = [each for each in routes if each.dev is None]
    found = resolve(without, read(host.routes, without)).routes if without else ()
    return {each.dev for each in routes if each.dev} | {each.dev for each in found if each.dev}


def _managed(host: Host, devs: Iterable[str]) -> list[str]:
    """Return those of the devices that networkd manages, by its own account."""
    indexes = {device.name: device.ifindex for device in host.routes.links()}
    return [
        dev
        for dev in sorted(devs)
        if dev in indexes and _state(host.files, indexes[dev]) in _MANAGED
    ]


def _state(files: FileStore, ifindex: int) -> str:
    """Return the state of a device in the file from which sd-network, the library for others, takes it, too."""
    text = (files.read(f"/run/systemd/netif/links/{ifindex}") or b"").decode(errors="replace")
    values = dict(line.partition("=")[::2] for line in text.splitlines())
    return values.get("ADMIN_STATE", "")
