"""The installed config: the config in force, as a file next to the scripts made from it.

The watch reads from it which routes are wanted. It takes the run lock first, so it never sees an
apply or reset half-way. docs/decisions/installed-config.md explains each state on the disk.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import attrs

from hostrouting.base.commands import command_line
from hostrouting.base.errors import ConfigMistake, HostFileError, InvalidConfigError
from hostrouting.boot.layout import (
    APPLIED_PATH,
    CONFIG_PATH,
    GENERATION_LINK,
    BootFile,
    BootUnit,
    UnitRemoval,
)
from hostrouting.config.sections import HostRoutingConfig, OverlapMode
from hostrouting.config.wire import errors_under, read_json, wire_fields
from hostrouting.net.addresses import is_device_name
from phases.hosting import first

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from hostrouting.host import FileStore, Host
    from phases import Context

NOT_INSTALLED: Final = f"no config is installed: there is no {CONFIG_PATH}"

_BETWEEN = ",\n  "
#: The attributes of a config.
ATTRIBUTES: Final = frozenset(field.name for field in attrs.fields(HostRoutingConfig) if field.init)


class NewConfig(NamedTuple):
    """The config that a run installs; the sections in `kept` stay as they are installed.

    >>> routes = HostRoutingConfig.from_mapping(
    ...     {"staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]}}
    ... )
    >>> installed = NewConfig(config=routes).merged_with(None, others=()).content
    >>> probes = HostRoutingConfig.from_mapping({"probeSnat": {"enabled": True}})
    >>> alone = NewConfig(config=probes, kept=frozenset({"static_routes"}))
    >>> both = alone.merged_with(installed, others=["static-routes.service"]).config
    >>> both.to_mapping()["probeSnat"], both.static_routes == routes.static_routes
    ({'enabled': True}, True)
    """

    config: HostRoutingConfig
    #: Attributes of a config.
    kept: frozenset[str] = frozenset()

    @property
    def file(self) -> BootFile:
        """The file with only this config."""
        return BootFile(CONFIG_PATH, _text(self.config))

    def merged_with(self, installed: bytes | None, *, others: Collection[str]) -> Merged:
        """Return the content of the file after merging with the installed one.

        `others` are the units on the disk that stay as they are. If the installed file is lost or
        damaged, the kept sections are unknown. Then it stays as it is, because a config without
        them would remove routes.
        """
        text = _text(self.config)
        # The check and the units that it waits for belong together.
        names = self.kept - {"after"} | ({"after"} if "route_overlap" in self.kept else set())
        if not names or installed == text:
            return Merged(text, self.config) if self.config.asks else NOTHING
        earlier = None
        with suppress(InvalidConfigError):
            earlier = _config_of(installed)
        if earlier is None and others:
            return Merged(installed, None)
        kept = {name: getattr(earlier or HostRoutingConfig(), name) for name in names}
        whole = attrs.evolve(self.config, **kept)
        # A config with only a watch installs nothing else, but its unit reads this file.
        is_needed = whole.asks or self.config.asks
        return Merged(_text(whole), whole) if is_needed else NOTHING


class Merged(NamedTuple):
    """The new content of the installed config; None if there should be none."""

    content: bytes | None
    #: The config in it; None if there is none, or if it is damaged.
    config: HostRoutingConfig | None


NOTHING: Final = Merged(None, None)
#: For a run that does not change the installed config.
UNCHANGED: Final = NewConfig(config=HostRoutingConfig(), kept=ATTRIBUTES)
#: What `Boot` installs or removes.
BootPart: TypeAlias = BootUnit | UnitRemoval | NewConfig


def read_installed_config(files: FileStore) -> HostRoutingConfig | None:
    """Return the config in force, or None; raise `InvalidConfigError` if the file is damaged.

    Call it under the run lock.

    >>> from hostrouting.testing import FakeHost
    >>> read_installed_config(FakeHost().files) is None
    True
    """
    content = read_applied(files)
    if not files.exists(APPLIED_PATH):
        return _config_of(content)
    try:
        return _config_of(content)
    except InvalidConfigError as error:
        raise _damaged(files) from error


def _damaged(files: FileStore) -> InvalidConfigError:
    """Return the error for a damaged copy in force, which people do not edit."""
    step = f", and so is its other copy; apply your own: {command_line('apply', 'CONFIG')}"
    with suppress(InvalidConfigError):
        edited_config(files)
        step = f"; apply its other copy: {command_line('apply', CONFIG_PATH)}"
    text = f"the installed config {APPLIED_PATH} is damaged{step}"
    return InvalidConfigError([ConfigMistake("", text)])


def config_in_force(files: FileStore) -> HostRoutingConfig | None:
    """Return the config of the generation in force, even if its editable copy was removed."""
    return _config_of(_in_force(files))


def _in_force(files: FileStore) -> bytes | None:
    return _beside(files, GENERATION_LINK) or files.read(CONFIG_PATH)


def read_applied(files: FileStore) -> bytes | None:
    """Return the config in force as the last apply wrote it; None if no config is installed.

    People may edit the installed config. If they or a reset have removed it, nothing is in force.
    """
    installed = files.read(CONFIG_PATH)
    if installed is None:
        return None
    return _beside(files, GENERATION_LINK) or installed


def applied_config(files: FileStore, folder: str) -> HostRoutingConfig:
    """Return the config of the generation in a folder; raise `InvalidConfigError` if missing."""
    content = _beside(files, folder) or files.read(f"{folder}/{CONFIG_PATH.rpartition('/')[2]}")
    config = _config_of(content)
    if config is None:
        raise InvalidConfigError([ConfigMistake("", NOT_INSTALLED)])
    return config


def _beside(files: FileStore, folder: str) -> bytes | None:
    # Files rendered for an image contain only the editable copy.
    return files.read(f"{folder}/{APPLIED_PATH.rpartition('/')[2]}")


def edited_config(files: FileStore) -> HostRoutingConfig:
    """Return the editable copy; raise `InvalidConfigError` if an apply would refuse it."""
    config = _config_of(files.read(CONFIG_PATH))
    if config is None:
        raise InvalidConfigError([ConfigMistake("", NOT_INSTALLED)])
    return config


def is_edited(files: FileStore) -> bool:
    """Return True if the installed config differs from the one in force."""
    return files.read(CONFIG_PATH) != read_applied(files)


def config_before_run(ctx: Context, host: Host) -> bytes | None:
    """Return the content of the file before the outermost run; None if there was no file.

    Call it under the run lock, before any change: another task of the run may replace the file.
    """
    return first(ctx, (CONFIG_PATH, host.lock), read_applied(host.files))


def config_over(content: bytes | None, new: HostRoutingConfig) -> HostRoutingConfig | None:
    """Return the config that a new one replaces; None if there is none or it is damaged."""
    if content is None:
        return None
    # Parsing 10,000 routes takes longer than formatting them.
    if content == _text(_with_devs(new, _found_devs(content))):
        return new
    with suppress(InvalidConfigError):
        return _config_of(content)
    return None


def installed_over(files: FileStore, new: HostRoutingConfig) -> HostRoutingConfig | None:
    """Return the config that a new one would replace now, for a forecast; None if unreadable.

    Ordinary users may not be allowed to read the directory.
    """
    with suppress(HostFileError):
        return config_over(read_applied(files), new)
    return None


def refuse_local_over(earlier: HostRoutingConfig | None, new: HostRoutingConfig) -> None:
    """Refuse a new config with loopback networks that the installed one does not contain.

    >>> loop = HostRoutingConfig.from_mapping({"routeOverlap": {"expectedCidrs": ["127.0.0.1/32"]}})
    >>> refuse_local_over(loop, loop)
    >>> refuse_local_over(None, loop)
    Traceback (most recent call last):
    hostrouting.base.errors.InvalidConfigError: hostRouting.routeOverlap.expectedCidrs: \
'127.0.0.1/32' is in 127.0.0.0/8, the node's own loopback; no packet for it leaves the node; \
remove it
    """
    kept = {} if earlier is None else earlier.route_overlap.local
    local = new.route_overlap.local
    mistakes = [mistake for place, mistake in local.items() if place not in kept]
    if mistakes:
        raise InvalidConfigError(errors_under("hostRouting", InvalidConfigError(mistakes)))


def installed_config_has(files: FileStore, section: str) -> bool:
    """Return True if the file contains a section, which is named by its attribute.

    The file is not parsed, because that takes 75 ms for 10,000 routes.
    """
    content = read_applied(files) or b""
    keys = {field.name: key for key, field in wire_fields(HostRoutingConfig).items()}
    return f'"{keys[section]}"'.encode() in content


def installed_checksum(files: FileStore) -> str:
    """Return the first 12 digits of the SHA-256 of the file, or "" if there is none."""
    # Imported here because hashlib loads OpenSSL, which takes milliseconds.
    import hashlib

    content = read_applied(files)
    return "" if content is None else hashlib.sha256(content).hexdigest()[:12]


def not_installed(host: Host) -> str:
    """Return the message that a host has no config."""
    return NOT_INSTALLED if host.is_live else f"{NOT_INSTALLED} in the image"


def without_config(host: Host) -> str:
    """Return the message that a host has no config, and how to install one."""
    root = "" if host.is_live else "--root DIR "
    commands = "; ".join(f"hostrouting {name} {root}CONFIG" for name in ("plan", "apply"))
    begin = "hostrouting init --cidr CIDR writes one to start from"
    return f"{not_installed(host)}; run, with your config: {commands} ({begin})"


def require_installed_config(host: Host) -> HostRoutingConfig:
    """Return the config in force; raise `InvalidConfigError` for a missing or damaged file.

    Callers that change nothing need not hold the run lock.

    >>> from hostrouting.testing import FakeHost
    >>> require_installed_config(FakeHost())
    Traceback (most recent call last):
    hostrouting.base.errors.InvalidConfigError: no config is installed: there is no \
/etc/aks-flex-node/hostrouting.json; run, with your config: hostrouting plan CONFIG; \
hostrouting apply CONFIG (hostrouting init --cidr CIDR writes one to start from)
    """
    config = read_installed_config(host.files)
    if config is None:
        raise InvalidConfigError([ConfigMistake("", without_config(host))])
    return config


def mode_of(config: HostRoutingConfig) -> OverlapMode:
    """Return the mode of the gates for a config: WARN if it expects no addresses."""
    overlap = config.route_overlap
    return overlap.mode if overlap.cidrs else OverlapMode.WARN


def with_found_devs(config: HostRoutingConfig, files: FileStore) -> HostRoutingConfig:
    """Return a config as an apply would install it, with the outbound devices found on this node.

    A config that names its devices is returned unchanged, and so is any config if the installed one
    cannot be read.

    >>> from hostrouting.testing import FakeHost
    >>> with_found_devs(HostRoutingConfig(found_devs=("eth9",)), FakeHost().files).devs
    ()
    """
    with suppress(HostFileError):
        return _with_devs(config, _found_devs(_in_force(files)))
    return config


def as_installed(config: HostRoutingConfig, host: Host) -> HostRoutingConfig:
    """Return a config as an apply would install it on a node or in an image.

    An image may boot on another node, so it gets no found devices.
    """
    return with_found_devs(config, host.files) if host.is_live else _with_devs(config, ())


# Each run calls this several times, and other caches need the same object.
@lru_cache(maxsize=4)
def _with_devs(config: HostRoutingConfig, devs: tuple[str, ...]) -> HostRoutingConfig:
    if config.route_overlap.expected_devs:
        devs = ()
    return config if config.found_devs == devs else attrs.evolve(config, found_devs=devs)


@lru_cache(maxsize=1)
def _found_devs(content: bytes | None) -> tuple[str, ...]:
    """Return the found devices in the content of the file; none if it is unreadable."""
    # Parsing a file with 10,000 routes takes 20 ms.
    found = re.search(rb'"foundDevs"\s*:\s*(\[[^\[\]]*\])', content or b"")
    devs: Any = ()
    with suppress(ValueError):
        devs = json.loads(found[1]) if found else ()
    return tuple(dev for dev in devs if isinstance(dev, str) and is_device_name(dev))


def found_devs_evidence(files: FileStore) -> Iterator[tuple[str, bytes]]:
    """Yield the path and the part of the file that a record needs to know the found devices."""
    with suppress(HostFileError):
        if devs := _found_devs(_in_force(files)):
            yield CONFIG_PATH, json.dumps({"hostRouting": {"foundDevs": devs}}).encode()


# The watch reads it before each repair, and it rarely changes.
@lru_cache(maxsize=1)
def _config_of(content: bytes | None) -> HostRoutingConfig | None:
    return None if content is None else _parsed(content)


def _parsed(content: bytes) -> HostRoutingConfig:
    """Parse the installed config, which people may have edited."""
    name = f"the installed config {CONFIG_PATH}"
    step = "or replace it with your own: hostrouting apply CONFIG"
    try:
        read_json(content, name=name)
    except InvalidConfigError as error:
        mistakes = [each._replace(message=f"{each.message}, {step}") for each in error.errors]
        raise InvalidConfigError(mistakes) from error
    try:
        config = HostRoutingConfig.from_json(content)
    except InvalidConfigError as error:
        [*mistakes, last] = error.errors
        named = last._replace(message=f"{last.message}; in {name}; correct it there, {step}")
        raise InvalidConfigError([*mistakes, named]) from error
    # An installed config always has a section, so a file like `{}` is damaged.
    if not config.asks:
        text = f"is missing or empty in {name}; replace it with your own: hostrouting apply CONFIG"
        raise InvalidConfigError([ConfigMistake("hostRouting", text)])
    return config


# A run compares it several times, and 1,000 routes take 2 ms.
@lru_cache(maxsize=1)
def _text(config: HostRoutingConfig) -> bytes:
    """Return the canonical JSON with a line for each section; equal configs give equal bytes.

    The mode is always written, so that an operator finds it.
    """
    # With `indent`, json is six times slower.
    mapping = config.to_mapping()
    if section := mapping.get("routeOverlap"):
        section.setdefault("mode", str(config.route_overlap.mode))
    sections = (f"{json.dumps(name)}: {json.dumps(section)}" for name, section in mapping.items())
    return f'{{"hostRouting": {{\n  {_BETWEEN.join(sections)}}}}}\n'.encode()
