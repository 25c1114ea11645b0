"""A capability of a node as a value: what the commands about a whole node need of it.

`node/capabilities.py` has the list. The functions import the room of the capability when they are
called: a node without it loads none of its code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    from hostrouting.base.findings import NodeFinding
    from hostrouting.boot.installed_config import BootPart
    from hostrouting.boot.reconciler import Reconciler
    from hostrouting.boot.task import NodeTask
    from hostrouting.config.optional import Section
    from hostrouting.config.sections import HostRoutingConfig
    from hostrouting.host import Host
    from phases import Context

    #: Returns the findings about one part of a node; changes nothing.
    Look: TypeAlias = Callable[[Context, "Inquiry"], Iterable[NodeFinding]]


class Inquiry(NamedTuple):
    """What the findings of a capability are about."""

    config: HostRoutingConfig
    host: Host
    #: False if the cloud is not to be queried about what is installed.
    queries: bool = True
    #: Receives the objects that a sweep would leave alone.
    spare: Callable[[dict[str, object]], object] = bool


class Program(NamedTuple):
    """A program that a boot needs for a capability."""

    name: str
    package: str
    #: The effect of its lack, if no gate waits for the capability.
    consequence: str = ""


#: What the units of boot scripts run.
SCRIPT_PROGRAMS: Final = (
    Program("bash", "bash"),
    Program("flock", "util-linux"),
    Program("nsenter", "util-linux"),
    Program("setpriv", "util-linux"),
)


def _no_parts(_config: HostRoutingConfig, _host: Host | None) -> Iterable[BootPart]:
    return ()


class Capability(NamedTuple):
    """One capability of a node."""

    #: The attribute of its section in the config.
    section: str
    #: The name of its task.
    name: str
    #: Returns the class of its task.
    task: Callable[[], type[NodeTask]]
    #: Returns its unit for every boot, or the removal of that; of an image without a host.
    parts: Callable[[HostRoutingConfig, Host | None], Iterable[BootPart]] = _no_parts
    #: Returns True if an apply would install anything; by default if the section asks for units.
    installs: Callable[[Context, HostRoutingConfig, Host], bool] | None = None
    programs: tuple[Program, ...] = ()
    #: What `check` looks at, by its name in a report.
    findings: Mapping[str, Look] = {}
    #: What a plan and an apply warn of, too.
    warnings: Mapping[str, Look] = {}
    #: Names it in the finding of a look that fails; without it, that is a note.
    subject: str = ""
    #: Returns its section in a first config, None for nothing, and a line on it.
    first: Callable[[Host], tuple[Section | None, str]] | None = None
    #: Returns what the worker of `Watch` runs for it.
    reconciler: Callable[[], type[Reconciler]] | None = None

    def in_config(self, config: HostRoutingConfig) -> Section:
        """Return its section."""
        section: Section = getattr(config, self.section)
        return section

    def would_install(self, ctx: Context, config: HostRoutingConfig, host: Host) -> bool:
        """Return True if an apply would install anything for it."""
        if self.installs is not None:
            return self.installs(ctx, config, host)
        section = self.in_config(config)
        return section.asks and bool(section.part_names())
