"""A service on loopback that answers any request with the bytes that it was given, and hangs up."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from functools import cache


class LoopbackService:
    """A service that runs until the process ends, as a fuzzer queries it thousands of times a
    second.
    """

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._answer = b""
        threading.Thread(target=self._serve, name="loopback service", daemon=True).start()

    @classmethod
    @cache
    def running(cls) -> LoopbackService:
        """Return the service of this process, which the first call starts."""
        return cls()

    @property
    def endpoint(self) -> str:
        """Return its URL."""
        return f"http://127.0.0.1:{self._server.getsockname()[1]}"

    def answer_with(self, answer: bytes) -> None:
        """Set the answer to all later requests."""
        self._answer = answer

    def _serve(self) -> None:
        while True:
            connection, _ = self._server.accept()
            with connection, suppress(OSError):
                connection.recv(1 << 12)
                connection.sendall(self._answer)
                connection.shutdown(socket.SHUT_WR)
                # Its data is only certain to arrive if nothing is unread when it hangs up.
                connection.settimeout(1)
                connection.recv(1)
