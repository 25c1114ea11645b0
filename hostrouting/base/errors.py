"""The errors of all rooms but those that have a route or a report; `exceptions.py` has the tree."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Any, NamedTuple

from phases.exceptions import TaskFailedError, describe

#: The errors of a moment: without memory, busy, interrupted, down.
PASSING = frozenset(
    {errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ENETDOWN, errno.ENOBUFS, errno.ENOMEM}
)


class TextPart(NamedTuple):
    """A part of an error's text: a line, and what it lists.

    >>> refused = TextPart("2 errors in the config", ("a: is wrong", "b: is, too"))
    >>> refused.lines(), refused.sentence
    (['2 errors in the config:', '  a: is wrong', '  b: is, too'], \
'2 errors in the config: a: is wrong; b: is, too')
    """

    text: str
    listed: tuple[str, ...] = ()

    def lines(self, indent: str = "  ") -> list[str]:
        """Return the part as lines of their own."""
        if not self.listed:
            return [self.text]
        return [f"{self.text}:", *(f"{indent}{each}" for each in self.listed)]

    @property
    def sentence(self) -> str:
        """The part for a line that it shares with others."""
        return f"{self.text}: {'; '.join(self.listed)}" if self.listed else self.text


class HostRoutingError(Exception):
    """The root: `except HostRoutingError` catches every error that this package raises on purpose.

    Every error can be copied and pickled, with its attributes.
    """

    #: True if the same call may succeed later, with the same config, and nobody has to act.
    retryable: bool = False
    #: Which case of its class it is, for programs; "" if there is only one.
    code: str = ""

    @property
    def parts(self) -> tuple[TextPart, ...]:
        """The text in its parts, for a program that shows it in another form."""
        return tuple(map(TextPart, str(self).splitlines()))

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
    hostrouting.base.errors.InvalidConfigError: 2 errors in the config:
      a: is wrong
      b: is, too
    """

    def __init__(self, errors: list[ConfigMistake]) -> None:
        self.errors = errors
        super().__init__(lines_of(self.parts))

    @property
    def parts(self) -> tuple[TextPart, ...]:
        """The heading with each mistake, or the only mistake."""
        texts = tuple(map(str, self.errors))
        if len(texts) < 2:
            return tuple(map(TextPart, texts))
        return (TextPart(f"{len(texts)} errors in the config", texts),)


class BackendError(HostRoutingError):
    """The kernel (or a fake) refused a request or could not answer; `errno` is None or its error.

    EBADMSG does not come from the kernel: its answer could not be read; the message names the
    question. `retryable` is True if the next lease, address, carrier or device may remove the
    cause, and where nothing was changed for ENOMEM, ENOBUFS, EBUSY, EAGAIN, EINTR and ENETDOWN.
    """

    #: True if a lease, an address or a carrier may come by itself: only for these a task waits.
    may_heal: bool = False

    def __init__(self, message: str, *, errno: int | None = None, retryable: bool = False) -> None:
        self.errno = errno
        self.retryable: bool = retryable or errno in PASSING or self.retryable
        super().__init__(message)


class EventsLostError(BackendError):
    """Events of the network were lost, and later ones follow: read everything anew, then go on.

    The errno is ENOBUFS if there were too many to hold, and EBADMSG if one could not be read.
    """

    retryable = True


class LinkNotFoundError(BackendError):
    """A route names a device that does not exist, or no longer; `dev` is its name.

    `routes` are those that name it, as far as they are known.
    """

    def __init__(
        self,
        message: str,
        *,
        dev: str,
        errno: int | None = None,
        retryable: bool = False,
        routes: Iterable[str] = (),
    ) -> None:
        self.dev = dev
        self.message = message
        self.routes: tuple[str, ...] = tuple(routes)
        super().__init__(lines_of(self.parts), errno=errno, retryable=retryable)

    @property
    def parts(self) -> tuple[TextPart, ...]:
        """The message, with the routes."""
        return (TextPart(self.message, self.routes),)


class PermissionDeniedError(BackendError):
    """The process lacks a capability.

    Changing routes and reading nftables or ebtables need CAP_NET_ADMIN; reading routes needs none.
    Probes on the link need CAP_NET_RAW.
    """

    def __init__(self, message: str, *, errno: int | None = errno.EPERM) -> None:
        super().__init__(message, errno=errno)


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


class StaleCNIError(HostRoutingError):
    """A cleanup was refused, or the entries came back: another program still uses them."""


class UnitError(HostRoutingError):
    """systemd refused a request, or a unit owned by hostrouting failed."""


class NoSystemdError(UnitError):
    """No systemd runs this machine, or systemctl does not speak with it.

    In a container, `Host.live(boot=False)` needs none.
    """

    code = "no-systemd"


class HostInUseError(HostRoutingError):
    """A run that changes routes alone was refused: somebody else has changed this host before.

    The `code` is `config-installed`, or `other-routes` if the host has `routes` of hostrouting that
    no such run has added.
    """

    def __init__(self, message: str, *, code: str, routes: Iterable[str] = ()) -> None:
        self.code: str = code
        self.routes: tuple[str, ...] = tuple(routes)
        super().__init__(message)


class HostFileError(HostRoutingError):
    """A file could not be read, written or removed; `errno` is None or that of the system."""

    def __init__(self, message: str, *, errno: int | None = None) -> None:
        self.errno = errno
        super().__init__(message)


class UnreadableConfigError(ConfigError, HostFileError):
    """The file of the config could not be read."""


class UnfinishedUndoError(HostRoutingError):
    """An undo of files did not end; the message names what is not as before."""


class LockHeldError(HostRoutingError):
    """Another run holds the run lock, and did not finish before the deadline."""

    retryable = True


def sentence_of(error: BaseException) -> str:
    """Return the text of an error, or of a failed task's causes, as one line."""
    if isinstance(error, TaskFailedError):
        causes = (
            ": ".join(filter(None, [failure.path, sentence_of(failure.cause)]))
            for failure in error.walk()
        )
        # Attempts that fail alike are shown once.
        return "; ".join(dict.fromkeys(causes))
    if isinstance(error, HostRoutingError):
        return "; ".join(part.sentence for part in error.parts)
    return "; ".join(describe(error).splitlines())


def lines_of(parts: Iterable[TextPart], indent: str = "  ") -> str:
    """Return the text of an error with these parts."""
    return "\n".join(line for part in parts for line in part.lines(indent))
