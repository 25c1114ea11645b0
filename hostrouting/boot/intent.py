"""The intent: the config in force, as a file beside the scripts that were made of it.

A program that keeps routing right after the boot reads there which routes are wanted. It takes the
run lock first, so it never sees the middle of an apply or reset. docs/decisions/intent.md has the
meaning of each state on the disk.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import attrs

from hostrouting.boot.layout import INTENT_PATH, BootFile, BootUnit, Departure
from hostrouting.config import HostRoutingConfig, OverlapMode
from hostrouting.config.wire import read_json
from hostrouting.exceptions import ConfigMistake, InvalidConfigError

if TYPE_CHECKING:
    from collections.abc import Collection

    from hostrouting.host import FileStore, Host
    from phases import Context

NOT_INSTALLED: Final = f"no config is installed: there is no {INTENT_PATH}"

_BETWEEN = ",\n  "
#: The attributes of a config.
SECTIONS: Final = frozenset(field.name for field in attrs.fields(HostRoutingConfig) if field.init)


class Intent(NamedTuple):
    """The config that a run puts in force; the sections `kept` stay as they are installed.

    >>> routes = HostRoutingConfig.from_mapping(
    ...     {"staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]}}
    ... )
    >>> installed = Intent(config=routes).text_over(None, others=())
    >>> probes = HostRoutingConfig.from_mapping({"probeSnat": {"enabled": True}})
    >>> alone = Intent(config=probes, kept=frozenset({"static_routes"}))
    >>> both = alone.text_over(installed, others=["static-routes.service"])
    >>> HostRoutingConfig.from_json(both).to_mapping()["probeSnat"]
    {'enabled': True}
    >>> HostRoutingConfig.from_json(both).static_routes == routes.static_routes
    True
    """

    config: HostRoutingConfig
    #: Attributes of the config.
    kept: frozenset[str] = frozenset()

    @property
    def file(self) -> BootFile:
        """The file of this config alone."""
        return BootFile(INTENT_PATH, _text(self.config))

    def text_over(self, installed: bytes | None, *, others: Collection[str]) -> bytes | None:
        """Return the content of the file, merged with the installed one; None for a void config.

        `others` are the units on the disk that stay as they are. If the installed file was lost or
        damaged, so that the kept sections are unknown, it stays as it is: a config without them
        would remove routes.
        """
        text = _text(self.config)
        # The proof and the units that it waits for belong together.
        names = self.kept - {"after"} | ({"after"} if "route_overlap" in self.kept else set())
        if names and installed != text:
            earlier = None
            with suppress(InvalidConfigError):
                earlier = _config_of(installed)
            if earlier is None and others:
                return installed
            kept = {name: getattr(earlier or HostRoutingConfig(), name) for name in names}
            whole = attrs.evolve(self.config, **kept)
            return _text(whole) if whole.asks else None
        return text if self.config.asks else None


#: The intent of a run that names none.
UNCHANGED: Final = Intent(config=HostRoutingConfig(), kept=SECTIONS)
#: One of the parts that `Boot` installs or removes at once.
Part: TypeAlias = BootUnit | Departure | Intent


def read_intent(files: FileStore) -> HostRoutingConfig | None:
    """Return the config in force, or None; raise `InvalidConfigError` if the file is damaged.

    Call it under the run lock: see the module.

    >>> from hostrouting.testing import FakeHost
    >>> read_intent(FakeHost().files) is None
    True
    """
    return _config_of(files.read(INTENT_PATH))


def first_intent(ctx: Context, host: Host) -> bytes | None:
    """Return the content of the file as the outermost run found it; None without a file.

    Call it under the run lock, before any change: a task of the same run may have replaced it.
    """
    return ctx.first((INTENT_PATH, host.lock), host.files.read(INTENT_PATH))


def config_over(content: bytes | None, new: HostRoutingConfig) -> HostRoutingConfig | None:
    """Return the config of the file that a new config is installed over; None if it is damaged."""
    # To read 10,000 routes takes longer than to write them.
    if content == _text(new):
        return new
    with suppress(InvalidConfigError):
        return _config_of(content)
    return None


def installed_checksum(files: FileStore) -> str:
    """Return the first 12 digits of the SHA-256 of the file, "" without a file."""
    import hashlib  # loads OpenSSL

    content = files.read(INTENT_PATH)
    return "" if content is None else hashlib.sha256(content).hexdigest()[:12]


def require_intent(files: FileStore) -> HostRoutingConfig:
    """Return the config in force; raise `InvalidConfigError` for a missing or damaged file.

    Callers that change nothing need not hold the run lock.

    >>> from hostrouting.testing import FakeHost
    >>> require_intent(FakeHost().files)
    Traceback (most recent call last):
    hostrouting.exceptions.InvalidConfigError: no config is installed: there is no \
/etc/aks-flex-node/hostrouting.json; give the path of a config, or apply one
    """
    config = read_intent(files)
    if config is None:
        step = "give the path of a config, or apply one"
        raise InvalidConfigError([ConfigMistake("", f"{NOT_INSTALLED}; {step}")])
    return config


def mode_of(content: bytes | None) -> OverlapMode:
    """Return the mode of the gates for the content of an intent; raise InvalidConfigError.

    Without expected CIDRs nothing is proven, and an accident holds no gate.
    """
    overlap = (_config_of(content) or HostRoutingConfig()).route_overlap
    return overlap.mode if overlap.cidrs else OverlapMode.WARN


# `Watch` reads it before each repair, and it hardly ever changes.
@lru_cache(maxsize=1)
def _config_of(content: bytes | None) -> HostRoutingConfig | None:
    if content is None:
        return None
    name = f"the installed config {INTENT_PATH}"
    config = HostRoutingConfig.from_mapping(read_json(content, name=name))
    # An installed config always has a section. A file like `{}` is damaged, and removes no routes.
    if not config.asks:
        text = f"is missing or empty in {name}; apply a config again"
        raise InvalidConfigError([ConfigMistake("hostRouting", text)])
    return config


# A run compares it several times: 2 ms for each 1,000 routes.
@lru_cache(maxsize=1)
def _text(config: HostRoutingConfig) -> bytes:
    """Return the canonical JSON, a section a line; the same config gives the same bytes.

    The mode is written in any case, so that an operator can edit it.
    """
    import json  # 8 ms that `import hostrouting` does not need

    # With `indent`, json takes six times as long for its part.
    mapping = config.to_mapping()
    if proof := mapping.get("routeOverlap"):
        proof.setdefault("mode", str(config.route_overlap.mode))
    sections = (f"{json.dumps(name)}: {json.dumps(section)}" for name, section in mapping.items())
    return f'{{"hostRouting": {{\n  {_BETWEEN.join(sections)}}}}}\n'.encode()
