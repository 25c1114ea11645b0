"""Every error that this library raises on purpose.

    HostRoutingError
    ├── InvalidConfigError (also a ValueError)    the operator's config, with every error in it
    ├── BackendError                              the kernel, or whatever stands for it, said no
    │   ├── LinkNotFoundError                     a device that a route names does not exist
    │   ├── PermissionDeniedError                 reading is free, changing needs CAP_NET_ADMIN
    │   ├── RouteRejectedError                    one refusal per route, and whether the rollback held
    │   └── ToolNotFoundError                     a program that does the work is not installed; its package
    ├── RouteOverlapError                         expected addresses would leave by another interface; the report
    ├── StaleCNIError                             what a removed CNI left cannot be taken away: something is alive
    ├── UnitError                                 systemd refused, or a unit failed
    ├── HostFileError                             a file could not be read or written
    └── LockHeldError                             another run of ours holds the machine

Errors of other libraries and of the operating system never pass through: they are chained
(`raise ... from`), and the message says what to do next.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = [
    "BackendError",
    "ConfigError",
    "HostFileError",
    "HostRoutingError",
    "InvalidConfigError",
    "LinkNotFoundError",
    "LockHeldError",
    "PermissionDeniedError",
    "Refusal",
    "RouteOverlapError",
    "RouteRejectedError",
    "StaleCNIError",
    "ToolNotFoundError",
    "UnitError",
]


class HostRoutingError(Exception):
    """The root: `except HostRoutingError` catches whatever we raise on purpose."""


class ConfigError(NamedTuple):
    """One thing that is wrong in a config: where, and what.

    >>> str(ConfigError("hostRouting.gates[0]", "'x' is not the name of a .service unit"))
    "hostRouting.gates[0]: 'x' is not the name of a .service unit"
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidConfigError(HostRoutingError, ValueError):
    """The config is refused; `errors` holds everything that is wrong with it, not just the first.

    >>> raise InvalidConfigError([ConfigError("a", "is wrong"), ConfigError("b", "is wrong too")])
    Traceback (most recent call last):
    hostrouting.exceptions.InvalidConfigError: 2 errors in the config:
      a: is wrong
      b: is wrong too
    """

    def __init__(self, errors: list[ConfigError]) -> None:
        self.errors = errors
        if len(errors) == 1:
            message = str(errors[0])
        else:
            message = "\n  ".join([f"{len(errors)} errors in the config:", *map(str, errors)])
        super().__init__(message)


class BackendError(HostRoutingError):
    """The kernel (or a fake) could not answer or refused; `errno` is its number where there is one.

    EBADMSG is ours: the kernel did answer, but what no kernel can mean; the message names the question.
    `may_heal` is True where the next lease, address, carrier or device may mend it, with the same config.
    """

    def __init__(self, message: str, *, errno: int | None = None, may_heal: bool = False) -> None:
        self.errno = errno
        self.may_heal = may_heal
        super().__init__(message)


class LinkNotFoundError(BackendError):
    """A route names a device that does not exist (any more); `dev` is its name."""

    def __init__(self, message: str, *, dev: str, errno: int | None = None, may_heal: bool = False) -> None:
        self.dev = dev
        super().__init__(message, errno=errno, may_heal=may_heal)


class PermissionDeniedError(BackendError):
    """Root, or a capability, is missing.

    Changing routes needs CAP_NET_ADMIN; reading them does not, reading nftables and ebtables does. Asking on the link
    needs CAP_NET_RAW.
    """


class ToolNotFoundError(BackendError):
    """A program that we run is not installed; `tool` is its name, `package` that of the package that has it.

    >>> raise ToolNotFoundError("nft", package="nftables", purpose="here")
    Traceback (most recent call last):
    hostrouting.exceptions.ToolNotFoundError: nft is needed here, but not installed; install the package nftables
    """

    def __init__(self, tool: str, *, package: str, purpose: str) -> None:
        self.tool = tool
        self.package = package
        super().__init__(f"{tool} is needed {purpose}, but not installed; install the package {package}")


class Refusal(NamedTuple):
    """One change that was refused: the change as `ip route` would write it, the errno, and the kernel's own words."""

    change: str
    errno: int
    reason: str

    def __str__(self) -> str:
        return f"{self.change}: {self.reason}"


class RouteRejectedError(BackendError):
    """At least one change of a batch was refused, so none of the batch is in force.

    `refusals` names every one of them. `rolled_back` is True when a read-back proved that the
    routes are as they were before; otherwise `left_behind` says in words what differs. `overtaken` are the
    changes whose route another program took away, or replaced, before it could be taken back.
    """

    def __init__(
        self,
        refusals: list[Refusal],
        *,
        rolled_back: bool,
        left_behind: list[str] | None = None,
        overtaken: list[str] | None = None,
        what: str = "route",
        may_heal: bool = False,
    ) -> None:
        self.refusals = refusals
        self.rolled_back = rolled_back
        self.left_behind = left_behind or []
        self.overtaken = overtaken or []
        lines = [f"{len(refusals)} {what} change{'s were' if len(refusals) != 1 else ' was'} refused:"]
        lines += [f"  {refusal}" for refusal in refusals]
        if rolled_back:
            lines.append(f"nothing was changed: the rollback was verified by reading the {_plural(what)} back")
        else:
            lines.append("THE ROLLBACK IS INCOMPLETE, these differ from before:")
            lines += [f"  {line}" for line in self.left_behind]
        super().__init__("\n".join(lines), errno=refusals[0].errno if refusals else None, may_heal=may_heal)


def _plural(what: str) -> str:
    return " and ".join(f"{word}s" for word in what.split(" and "))


class RouteOverlapError(HostRoutingError):
    """Expected addresses would not leave by the node's own interface; `report` is the whole `OverlapReport`.

    Its text is that of the report: what is wrong, which route decides it, and what to put into the config.
    """

    def __init__(self, report: Any) -> None:
        self.report = report
        super().__init__(str(report))


class StaleCNIError(HostRoutingError):
    """What a removed CNI left behind is not taken away, or comes back: the CNI, or something else, is still at work."""


class UnitError(HostRoutingError):
    """systemd refused a request, or a unit of ours failed."""


class HostFileError(HostRoutingError):
    """A file of ours could not be read, written or removed."""


class LockHeldError(HostRoutingError):
    """Another run holds the lock and did not finish within our deadline."""
