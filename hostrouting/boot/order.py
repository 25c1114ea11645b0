"""The order in which boot files and the live machine change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostrouting.exceptions import HostRoutingError, PermissionDeniedError, RouteRejectedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostrouting.boot.boot import Boot

__all__ = ["install_around", "is_refusal"]


def install_around(boot: Boot, install: Callable[[], object], act: Callable[[], object]) -> None:
    """Install and act, in the order that never leaves a node without its gate or with a config that cannot work.

    On a node without hostrouting, `install` comes first: if `act` fails, the machine must not start at the next boot
    either. Over an installed config `act` comes first, and a config that the kernel refuses is not installed. Any other
    failure may be gone at the next boot, and is raised after the installation.
    """
    if not boot.is_installed:
        install()
        act()
        return
    failure: HostRoutingError | None = None
    try:
        act()
    except HostRoutingError as error:
        if is_refusal(error):
            raise
        failure = error
    install()
    if failure is not None:
        raise failure


def is_refusal(error: BaseException) -> bool:
    """Return True if the kernel refuses a config as such: it would do so again at the next boot."""
    return isinstance(error, RouteRejectedError | PermissionDeniedError) and not error.may_heal
