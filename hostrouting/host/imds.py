"""The cloud's instance metadata service, over HTTP, using only the standard library."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple

import attrs

from hostrouting.base.errors import BackendError
from phases import Context, DeadlineExceededError

_logger = logging.getLogger(__name__)

_PATH = "/metadata/instance/network/interface?api-version=2021-02-01"
#: Transient answers: not there yet, being updated, too many requests; and every 5xx.
_TRANSIENT = frozenset({404, 410, 429})
#: A machine with eight interfaces needs 3 KiB.
_MOST_BYTES = 256 * 1024
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 8.0
_SECONDS_BETWEEN_CHECKS = 0.05
#: The most characters of the service's text that a message shows.
_MOST_CHARACTERS = 100


@attrs.frozen
class InstanceMetadataClient:
    """The metadata service at `endpoint`: `http://` and a host, with an optional port.

    It implements `InstanceMetadata`. It ignores proxies in the environment, and redirects, because
    the service is on the machine's own link and answers only this machine.
    """

    endpoint: str = "http://169.254.169.254"
    #: How long one request may take, from connecting to the last byte, in seconds.
    timeout: float = attrs.field(default=2.0, kw_only=True)
    #: How long all attempts together may take, in seconds, if the context allows.
    limit: float = attrs.field(default=60.0, kw_only=True)

    def network_interfaces(self, ctx: Context) -> object:
        """See `InstanceMetadata.network_interfaces`."""
        ctx.check()
        within = ctx.child(self.limit)
        pause = _FIRST_PAUSE
        tries = 0
        last = "it has not answered yet"
        try:
            while True:
                tries += 1
                answer = self._ask(within)
                if not answer.is_transient:
                    return self._document(answer)
                last = str(answer)
                level = logging.INFO if tries == 1 else logging.DEBUG
                extra = {"endpoint": self.endpoint, "waits": True}
                _logger.log(level, "waiting for the cloud's metadata: %s", last, extra=extra)
                within.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        except DeadlineExceededError as error:
            raise BackendError(
                f"the instance metadata service at {self.endpoint} gave no answer in {tries} "
                f"{'attempt' if tries == 1 else 'attempts'} before the deadline; the last: {last}; "
                f"check if it is reachable: {self._command}"
            ) from error

    def _ask(self, ctx: Context) -> _Response:
        """Send one request; abandon it as soon as the context ends."""
        exchange = _Request(self.endpoint.removeprefix("http://"), self.timeout)
        # In real time, because the network does not follow the clock of a test.
        until = time.monotonic() + self.timeout
        try:
            while not wait([exchange.outcome], min(_SECONDS_BETWEEN_CHECKS, self.timeout)).done:
                ctx.check()
                if time.monotonic() >= until:
                    return _too_slow(self.timeout)
        finally:
            exchange.abandon()
        return exchange.outcome.result()

    def _document(self, answer: _Response) -> object:
        if answer.status != 200:
            raise self._error(str(answer), guess="")
        if len(answer.body) > _MOST_BYTES:
            raise self._error(f"more than {_MOST_BYTES // 1024} KiB, beginning with {answer.start}")
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            raise self._error(
                f"text that is not JSON and begins with {answer.start}"
                if answer.body.strip()
                else "nothing"
            ) from error

    def _error(
        self, what: str, *, guess: str = "is another service listening there? "
    ) -> BackendError:
        return BackendError(
            f"the instance metadata service at {self.endpoint} answered with {what}; {guess}"
            f"see {self._command}"
        )

    @property
    def _command(self) -> str:
        return f"curl --noproxy '*' -i -H Metadata:true '{self.endpoint}{_PATH}'"


class _Response(NamedTuple):
    """The answer: a status and a body, or why there is none."""

    status: int | None
    words: str
    body: bytes = b""

    def __str__(self) -> str:
        if self.status is None:
            return self.words
        status = f"{self.status} {_shown(self.words)}".strip()
        return f"{status}: {self.start}" if self.body.strip() else status

    @property
    def is_transient(self) -> bool:
        """True if another attempt may succeed."""
        return self.status is None or self.status in _TRANSIENT or self.status >= 500

    @property
    def start(self) -> str:
        """The part of the body that an error shows."""
        return repr(self.body.strip()[:_MOST_CHARACTERS].decode(errors="replace"))


class _Request:
    """One request in its own thread, so that the caller can watch its context."""

    def __init__(self, server: str, timeout: float) -> None:
        self._connection = HTTPConnection(server, timeout=timeout)
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._is_abandoned = False
        self.outcome: Future[_Response] = Future()
        # A daemon thread, because name resolution cannot be interrupted.
        threading.Thread(target=self._run, name=f"request to {server}", daemon=True).start()

    def abandon(self) -> None:
        """End the request if it is still running: a slow service could block it for hours."""
        self._is_abandoned = True
        if self._socket is not None:
            # It may have been closed by either side.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            self.outcome.set_result(self._answer())
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            self.outcome.set_exception(error)
        finally:
            self._connection.close()

    def _answer(self) -> _Response:
        try:
            self._connection.connect()
            # The connection forgets its socket as soon as it has read the headers.
            self._socket = self._connection.sock
            if self._is_abandoned:
                return _Response(None, "given up")
            self._connection.request(
                "GET", _PATH, headers={"Metadata": "true", "Connection": "close"}
            )
            with self._connection.getresponse() as response:
                body = response.read(_MOST_BYTES + 1)
                if len(body) <= _MOST_BYTES and response.length:
                    return _Response(None, f"the connection was closed after {len(body)} bytes")
                return _Response(response.status, response.reason, body)
        except TimeoutError:
            return _too_slow(self._timeout)
        except (OSError, HTTPException, ValueError) as error:
            # ValueError: an invalid host name, or an invalid number in the answer.
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            return _Response(None, f"no answer: {_shown(reason)}")


def _shown(text: str) -> str:
    """Return the service's text, shortened and without control characters."""
    return repr(text[:_MOST_CHARACTERS])[1:-1]


def _too_slow(timeout: float) -> _Response:
    return _Response(None, f"no complete answer within {timeout:g} s")
