"""The errors that this library raises on purpose.

    HostRoutingError
    ├── ConfigError                  a valid config is missing
    │   ├── InvalidConfigError       it is invalid (also a ValueError); every mistake in it
    │   └── UnreadableConfigError    its file cannot be read (also a HostFileError)
    ├── BackendError                 the kernel, or a fake, refused a request or could not answer
    │   ├── EventsLostError          events were lost: read everything anew
    │   ├── LinkNotFoundError        a device that a route names does not exist
    │   ├── NeighbourRejectedError   changes of neighbours were refused; the rest was made
    │   ├── PermissionDeniedError    a capability is missing
    │   ├── RouteRejectedError       changes were refused; each refusal, and the rollback
    │   ├── ToolNotFoundError        a program is not installed; the package that has it
    │   └── UnknownDecisionError     the kernel's decision depends on more than a model holds
    ├── RouteOverlapError            expected addresses would leave by another device; the report
    │   └── WorseRoutingError        the same for addresses that leave right without the config
    ├── StaleCNIError                the sweep would remove live objects, or they come back
    ├── UnitError                    systemd refused a request, or a unit failed
    ├── HostFileError                a file could not be read, written or removed
    └── LockHeldError                another run of hostrouting holds the machine

An error of another library or of the operating system is never raised as it is: it is the
`__cause__` of one of these, whose message names the next step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostrouting.net.links import Neighbour, NeighbourChange
    from hostrouting.net.routes import RouteChange

_Change = TypeVar("_Change", "RouteChange", "NeighbourChange")

__all__ = [
    "BackendError",
    "ConfigError",
    "ConfigMistake",
    "EventsLostError",
    "HostFileError",
    "HostRoutingError",
    "InvalidConfigError",
    "LinkNotFoundError",
    "LockHeldError",
    "NeighbourRejectedError",
    "PermissionDeniedError",
    "Refusal",
    "RouteOverlapError",
    "RouteRejectedError",
    "StaleCNIError",
    "ToolNotFoundError",
    "UnitError",
    "UnknownDecisionError",
    "UnreadableConfigError",
    "WorseRoutingError",
]


class HostRoutingError(Exception):
    """The root: `except HostRoutingError` catches every error that this package raises on purpose.

    Every error can be copied and pickled, with its attributes.
    """

    #: True if the same call may succeed later, with the same config, and nobody has to act.
    retryable: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Without __init__, which takes other arguments than the message.
        return type(self).__new__, (type(self), *self.args), self.__dict__


class ConfigMistake(NamedTuple):
    """One mistake in a config: the path of the value, and the reason.

    >>> str(ConfigMistake("hostRouting.gates[0]", "'x' is not the name of a .service unit"))
    "hostRouting.gates[0]: 'x' is not the name of a .service unit"
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(HostRoutingError):
    """A valid config is missing: it is invalid, or its file cannot be read."""


class InvalidConfigError(ConfigError, ValueError):
    """The config is invalid; `errors` holds every mistake in it, not only the first.

    >>> raise InvalidConfigError([ConfigMistake("a", "is wrong"), ConfigMistake("b", "is, too")])
    Traceback (most recent call last):
    hostrouting.exceptions.InvalidConfigError: 2 errors in the config:
      a: is wrong
      b: is, too
    """

    def __init__(self, errors: list[ConfigMistake]) -> None:
        self.errors = errors
        heading = [f"{len(errors)} errors in the config:"] if len(errors) > 1 else []
        super().__init__("\n  ".join([*heading, *map(str, errors)]))


class BackendError(HostRoutingError):
    """The kernel (or a fake) refused a request or could not answer; `errno` is None or its error.

    EBADMSG does not come from the kernel: its answer could not be read; the message names the
    question. `retryable` is True if the next lease, address, carrier or device may remove the
    cause.
    """

    def __init__(self, message: str, *, errno: int | None = None, retryable: bool = False) -> None:
        self.errno = errno
        self.retryable: bool = retryable or self.retryable
        super().__init__(message)


class EventsLostError(BackendError):
    """Events of the network were lost, and later ones follow: read everything anew, then go on.

    The errno is ENOBUFS if there were too many to hold, and EBADMSG if one could not be read.
    """

    retryable = True


class LinkNotFoundError(BackendError):
    """A route names a device that does not exist, or no longer; `dev` is its name."""

    def __init__(
        self, message: str, *, dev: str, errno: int | None = None, retryable: bool = False
    ) -> None:
        self.dev = dev
        super().__init__(message, errno=errno, retryable=retryable)


class PermissionDeniedError(BackendError):
    """The process lacks a capability.

    Changing routes and reading nftables or ebtables need CAP_NET_ADMIN; reading routes needs none.
    Probes on the link need CAP_NET_RAW.
    """


class ToolNotFoundError(BackendError):
    """A program is not installed; `tool` is its name, and `package` that of its package.

    >>> print(ToolNotFoundError("nft", package="nftables", purpose="here"))
    nft is needed here, but not installed; install the package nftables
    """

    def __init__(self, tool: str, *, package: str, purpose: str) -> None:
        self.tool = tool
        self.package = package
        super().__init__(
            f"{tool} is needed {purpose}, but not installed; install the package {package}"
        )


class UnknownDecisionError(BackendError):
    """The kernel's decision depends on more than the model holds; the message names the gap."""


@attrs.frozen
class Refusal(Generic[_Change]):
    """One refused change: of a route or of a neighbour, the errno, and the kernel's message."""

    change: _Change
    errno: int
    reason: str

    def __str__(self) -> str:
        return f"{self.change}: {self.reason}"


class RouteRejectedError(BackendError):
    """At least one change of a batch was refused, so none of the batch is in force.

    `refusals` holds every refused change. `rolled_back` is True if reading back proved that the
    routes are as they were before; otherwise `left_behind` describes each difference. The text
    follows these attributes, so that a caller may complete them.
    """

    def __init__(
        self,
        refusals: list[Refusal[RouteChange]],
        *,
        rolled_back: bool,
        left_behind: Iterable[str] = (),
    ) -> None:
        self.refusals = refusals
        self.rolled_back = rolled_back
        self.left_behind: list[str] = list(left_behind)
        super().__init__(
            f"{len(refusals)} route change{'s were' if len(refusals) != 1 else ' was'} refused:",
            errno=refusals[0].errno if refusals else None,
        )

    def __str__(self) -> str:
        lines = [super().__str__(), *(f"  {refusal}" for refusal in self.refusals)]
        if self.rolled_back:
            lines.append("the routes are as before: the rollback was verified by reading them back")
        else:
            lines.append("THE ROLLBACK IS INCOMPLETE, these differ from before:")
            lines += [f"  {line}" for line in self.left_behind]
        return "\n".join(lines)


class NeighbourRejectedError(BackendError):
    """Changes of neighbours were refused (`refusals`); those of the neighbours `made` were not."""

    def __init__(
        self, refusals: list[Refusal[NeighbourChange]], made: Sequence[Neighbour] = ()
    ) -> None:
        self.refusals = refusals
        self.made = made
        lines = ["changes of neighbours were refused:", *(f"  {refusal}" for refusal in refusals)]
        lines += (
            ["these were made:", *(f"  {neighbour}" for neighbour in made)]
            if made
            else ["nothing was changed"]
        )
        super().__init__("\n".join(lines), errno=refusals[0].errno)


class RouteOverlapError(HostRoutingError):
    """Expected addresses would leave by another device; `report` is the whole `OverlapReport`.

    Its text is the report's: each finding, the route that decides it, and the route to add to the
    config. `retryable` is True if only routes or carriers are missing, which may come.
    """

    def __init__(self, report: Any, *, retryable: bool = False) -> None:
        self.report = report
        self.retryable: bool = retryable
        super().__init__(str(report))


class WorseRoutingError(RouteOverlapError):
    """Expected addresses that leave right would not, by a config: the text has the next step.

    `worse` has a value for each range of addresses: its `cidr`, the `finding` about them, and the
    `cause`, a `RouteChange` or None. The value for an exit that would move has the `move` instead.
    """

    def __init__(self, report: Any, text: str, worse: Sequence[Any] = ()) -> None:
        super().__init__(report)
        self.worse = worse
        self.args = (text,)


class StaleCNIError(HostRoutingError):
    """The sweep was refused, or its objects came back: another program still uses them."""


class UnitError(HostRoutingError):
    """systemd refused a request, or a unit owned by hostrouting failed."""


class HostFileError(HostRoutingError):
    """A file could not be read, written or removed."""


class UnreadableConfigError(ConfigError, HostFileError):
    """The file of the config could not be read."""


class LockHeldError(HostRoutingError):
    """Another run holds the run lock, and did not finish before the deadline."""

    retryable = True
