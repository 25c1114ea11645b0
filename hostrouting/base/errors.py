"""All errors except those that hold a route or a report; `exceptions.py` shows the tree."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import Any, NamedTuple

from phases.exceptions import TaskFailedError, describe

#: Transient errors: out of memory, busy, interrupted, network down.
PASSING = frozenset(
    {errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ENETDOWN, errno.ENOBUFS, errno.ENOMEM}
)


class Paragraph(NamedTuple):
    """A paragraph of an error's text: a line, and a list below it.

    >>> refused = Paragraph("2 errors in the config", ("a: is missing", "b: is unknown"))
    >>> refused.lines(), refused.sentence
    (['2 errors in the config:', '  a: is missing', '  b: is unknown'], \
'2 errors in the config: a: is missing; b: is unknown')
    """

    text: str
    listed: tuple[str, ...] = ()

    def lines(self, indent: str = "  ") -> list[str]:
        """Return the paragraph as separate lines."""
        if not self.listed:
            return [self.text]
        return [f"{self.text}:", *(f"{indent}{each}" for each in self.listed)]

    @property
    def sentence(self) -> str:
        """The paragraph on one line."""
        return f"{self.text}: {'; '.join(self.listed)}" if self.listed else self.text


class HostRoutingError(Exception):
    """The base class of every error that this package raises on purpose.

    Every error can be copied and pickled together with its attributes.
    """

    #: True if the same call with the same config may succeed later without anyone's intervention.
    retryable: bool = False
    #: Which case of its class it is, for programs; "" if there is only one.
    code: str = ""

    @property
    def paragraphs(self) -> tuple[Paragraph, ...]:
        """The text as paragraphs, for programs that lay it out themselves."""
        return tuple(map(Paragraph, str(self).splitlines()))

    def __reduce__(self) -> tuple[Any, ...]:
        # Bypasses __init__, whose arguments are not the message.
        return type(self).__new__, (type(self), *self.args), self.__dict__


class ConfigMistake(NamedTuple):
    """One mistake in a config: the path of the value and what is wrong with it.

    >>> str(ConfigMistake("hostRouting.gates[0]", "'x' is not the name of a .service unit"))
    "hostRouting.gates[0]: 'x' is not the name of a .service unit"
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(HostRoutingError):
    """The config is invalid, or its file cannot be read."""


class InvalidConfigError(ConfigError, ValueError):
    """The config is invalid; `errors` lists every mistake, not only the first.

    >>> mistakes = [ConfigMistake("a", "is missing"), ConfigMistake("b", "is unknown")]
    >>> raise InvalidConfigError(mistakes)
    Traceback (most recent call last):
    hostrouting.base.errors.InvalidConfigError: 2 errors in the config:
      a: is missing
      b: is unknown
    """

    def __init__(self, errors: list[ConfigMistake]) -> None:
        self.errors = errors
        super().__init__(lines_of(self.paragraphs))

    @property
    def paragraphs(self) -> tuple[Paragraph, ...]:
        """A heading with all mistakes, or the only mistake."""
        texts = tuple(map(str, self.errors))
        if len(texts) < 2:
            return tuple(map(Paragraph, texts))
        return (Paragraph(f"{len(texts)} errors in the config", texts),)


class BackendError(HostRoutingError):
    """The kernel (or a fake) refused a request or could not answer; `errno` is its error, or None.

    EBADMSG does not come from the kernel: it means that the kernel's answer could not be parsed.
    `retryable` is True if a new lease, address, carrier or device may remove the cause. It is also
    True for ENOMEM, ENOBUFS, EBUSY, EAGAIN, EINTR and ENETDOWN, if nothing was changed.
    """

    #: True if a lease, an address or a carrier may still appear: tasks wait only for these.
    may_heal: bool = False

    def __init__(self, message: str, *, errno: int | None = None, retryable: bool = False) -> None:
        self.errno = errno
        self.retryable: bool = retryable or errno in PASSING or self.retryable
        super().__init__(message)


class EventsLostError(BackendError):
    """Network events were lost: read everything again, then go on with the events that follow.

    The errno is ENOBUFS if there were too many events, and EBADMSG if one could not be parsed.
    """

    retryable = True


class LinkNotFoundError(BackendError):
    """A route names a device that does not exist; `dev` is its name.

    `routes` lists the routes that name it, as far as they are known.
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
        super().__init__(lines_of(self.paragraphs), errno=errno, retryable=retryable)

    @property
    def paragraphs(self) -> tuple[Paragraph, ...]:
        """The message and the routes."""
        return (Paragraph(self.message, self.routes),)


class PermissionDeniedError(BackendError):
    """The process does not have a capability that it needs.

    Changing routes and reading nftables or ebtables need CAP_NET_ADMIN; reading routes does not.
    Probing gateways on the link needs CAP_NET_RAW.
    """

    def __init__(self, message: str, *, errno: int | None = errno.EPERM) -> None:
        super().__init__(message, errno=errno)


class ToolNotFoundError(BackendError):
    """A program is not installed; `tool` is its name, `package` the package that contains it.

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
    """The kernel's decision depends on something that the model does not cover."""


class StaleCNIError(HostRoutingError):
    """The cleanup was refused, or the entries came back: another program still uses them."""


class UnitError(HostRoutingError):
    """systemd refused a request, or a unit owned by hostrouting failed.

    The `code` is `no-program` if a boot could not run the program in STRICT mode, which an apply
    with `force` does not mind.
    """


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
    """A file could not be read, written or removed; `errno` is the system's error, or None."""

    def __init__(self, message: str, *, errno: int | None = None) -> None:
        self.errno = errno
        super().__init__(message)


class UnreadableConfigError(ConfigError, HostFileError):
    """The config file could not be read."""


class UnfinishedUndoError(HostRoutingError):
    """An undo of files did not end; the message names what is not as before."""


class LockHeldError(HostRoutingError):
    """Another run holds the run lock and did not finish before the deadline."""

    retryable = True


def sentence_of(error: BaseException) -> str:
    """Return the text of an error, or the causes of a failed task, on one line."""
    if isinstance(error, TaskFailedError):
        causes = (
            ": ".join(filter(None, [failure.path, sentence_of(failure.cause)]))
            for failure in error.walk()
        )
        # Attempts that failed for the same reason are shown once.
        return "; ".join(dict.fromkeys(causes))
    if isinstance(error, HostRoutingError):
        return "; ".join(paragraph.sentence for paragraph in error.paragraphs)
    return "; ".join(describe(error).splitlines())


def lines_of(paragraphs: Iterable[Paragraph], indent: str = "  ") -> str:
    """Return the text of an error with these paragraphs."""
    return "\n".join(line for each in paragraphs for line in each.lines(indent))
