"""A backend over the pyroute2 `IPRoute` or `NetNS` that an agent already holds.

It is the default backend with another conversation: pyroute2 carries the messages, one request for
each change, so it is simple instead of fast.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hostrouting.base.errors import BackendError
from hostrouting.host.netlink.backend import NetlinkBackend
from hostrouting.host.netlink.conversation import errors_of
from phases.mistakes import wrong_argument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostrouting.host.netlink.conversation import Conversation


__all__ = ["Pyroute2Backend"]


class Pyroute2Backend(NetlinkBackend):
    """A `RouteBackend` over the caller's `ipr`, which is neither configured nor closed here.

    >>> from pyroute2 import IPRoute
    >>> with IPRoute() as ipr:
    ...     Pyroute2Backend(ipr).links()[0].name
    'lo'
    """

    def __init__(self, ipr: Any) -> None:
        super().__init__()
        if find_spec("pyroute2") is None:
            raise BackendError(
                "Pyroute2Backend needs pyroute2, which is not installed for this Python; "
                "install pyroute2, or use NetlinkBackend, which needs no package"
            )
        if not hasattr(ipr, "nlm_request_batch"):
            raise wrong_argument("ipr", ipr, "an IPRoute", "IPRoute()")
        self._ipr = ipr
        # The socket belongs to the caller: one request at a time.
        self._lock = threading.RLock()

    @contextmanager
    def _open(self) -> Iterator[Conversation]:
        # Imported late: pyroute2 may be absent, and its import takes 145 ms.
        from hostrouting.host.pyroute_conversation import Pyroute2Conversation

        with self._lock, errors_of("pyroute2"):
            yield Pyroute2Conversation(self._ipr)
