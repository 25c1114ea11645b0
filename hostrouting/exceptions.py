"""The errors that this library raises on purpose.

    HostRoutingError
    ├── ConfigError                  a valid config is missing
    │   ├── InvalidConfigError       it is invalid (also a ValueError); every mistake in it
    │   └── UnreadableConfigError    its file cannot be read (also a HostFileError)
    ├── BackendError                 the kernel, or a fake, refused a request or could not answer
    │   ├── EventsLostError          events were lost: read everything again
    │   ├── LinkNotFoundError        a device that a route names does not exist
    │   ├── PermissionDeniedError    a capability is missing
    │   ├── RouteRejectedError       changes were refused; each refusal, and the rollback
    │   ├── ToolNotFoundError        a program is not installed; the package that has it
    │   └── UnknownDecisionError     the kernel's decision depends on more than a model holds
    ├── RouteOverlapError            addresses would leave through another device; has the report
    │   └── WorseRoutingError        the same for addresses that leave right without the config
    ├── StaleCNIError                a cleanup was refused, or the entries come back
    ├── UnitError                    systemd refused a request, or a unit failed
    │   └── NoSystemdError           no systemd runs here, as in a container
    ├── HostInUseError               an installed config, or other routes, would undo this run
    ├── UnfinishedUndoError          files are not as before, or systemd has not read them
    ├── HostFileError                a file could not be read, written or removed
    └── LockHeldError                another run of hostrouting holds the machine

An error of another library or of the operating system is never raised as it is: it is the
`__cause__` of one of these, whose message names the next step.
"""

from hostrouting.base.errors import (
    BackendError,
    ConfigError,
    ConfigMistake,
    EventsLostError,
    HostFileError,
    HostInUseError,
    HostRoutingError,
    InvalidConfigError,
    LinkNotFoundError,
    LockHeldError,
    NoSystemdError,
    Paragraph,
    PermissionDeniedError,
    StaleCNIError,
    ToolNotFoundError,
    UnfinishedUndoError,
    UnitError,
    UnknownDecisionError,
    UnreadableConfigError,
)
from hostrouting.net.rejected import Refusal, RouteRejectedError
from hostrouting.route_overlap.errors import RouteOverlapError, WorseRoutingError

__all__ = [
    "BackendError",
    "ConfigError",
    "ConfigMistake",
    "EventsLostError",
    "HostFileError",
    "HostInUseError",
    "HostRoutingError",
    "InvalidConfigError",
    "LinkNotFoundError",
    "LockHeldError",
    "NoSystemdError",
    "Paragraph",
    "PermissionDeniedError",
    "Refusal",
    "RouteOverlapError",
    "RouteRejectedError",
    "StaleCNIError",
    "ToolNotFoundError",
    "UnfinishedUndoError",
    "UnitError",
    "UnknownDecisionError",
    "UnreadableConfigError",
    "WorseRoutingError",
]
