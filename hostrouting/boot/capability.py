"""A capability of a node as a value: what the commands for a whole node need to know about it.

`node/capabilities.py` lists them. The functions import the capability's package when they are
called, so its code is loaded only on nodes that use it.
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

    #: Returns findings about one aspect of a node; changes nothing.
    FindingsOf: TypeAlias = Callable[[Context, "Inquiry"], Iterable[NodeFinding]]


class Inquiry(NamedTuple):
    """The node and config that a check is about."""

    config: HostRoutingConfig
    host: Host
    #: False if the cloud should not be queried about what is installed already.
    queries: bool = True
    #: Receives the objects that a sweep would leave alone.
    spare: Callable[[dict[str, object]], object] = bool


class Program(NamedTuple):
    """A program that a capability needs at boot."""

    name: str
    package: str
    #: What happens without it, if no gate waits for the capability.
    consequence: str = ""


#: The programs that the boot scripts need.
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
    #: Returns its boot unit or the unit's removal; without a host, for an image.
    parts: Callable[[HostRoutingConfig, Host | None], Iterable[BootPart]] = _no_parts
    #: Returns True if an apply would install anything; by default, if the section asks for units.
    installs: Callable[[Context, HostRoutingConfig, Host], bool] | None = None
    programs: tuple[Program, ...] = ()
    #: What `check` looks for, by its name in a report.
    findings: Mapping[str, FindingsOf] = {}
    #: What a plan and an apply also warn about.
    warnings: Mapping[str, FindingsOf] = {}
    #: How a finding names it if its check fails; without a name, that is only a note.
    subject: str = ""
    #: Returns its section for `init`, or None, and a line that explains it.
    first: Callable[[Host], tuple[Section | None, str]] | None = None
    #: Returns what the worker of the watch runs for it.
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
