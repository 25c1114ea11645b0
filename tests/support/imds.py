"""FakeIMDS: a metadata service on loopback with the answers, delays and faults that a test chooses."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import attrs


def network_interface(*, ipv6: Sequence[str] = (), mac: str = "000D3A123456") -> dict[str, Any]:
    """Return one network interface in the cloud's form; a machine's description is a list of them."""
    return {
        "ipv4": {
            "ipAddress": [{"privateIpAddress": "10.224.0.4", "publicIpAddress": ""}],
            "subnet": [{"address": "10.224.0.0", "prefix": "16"}],
        },
        "ipv6": {"ipAddress": [{"privateIpAddress": address} for address in ipv6]},
        "macAddress": mac,
    }


@attrs.frozen(kw_only=True)
class IMDSAnswer:
    """One answer, its headers and its delays."""

    status: int = 200
    body: bytes = b""
    #: `Connection: close` and `Content-Length` are added unless they are here.
    headers: Mapping[str, str] = attrs.field(factory=dict)
    #: Seconds before the first byte.
    delay: float = 0.0
    #: Seconds after each byte, from the status line on.
    drip: float = 0.0
    #: If true, the connection is closed without an answer.
    closes: bool = False

    @classmethod
    def of(cls, document: object) -> IMDSAnswer:
        """Return the answer with this document in JSON.

        >>> IMDSAnswer.of([]).body
        b'[]'
        """
        return cls(
            body=json.dumps(document).encode(),
            headers={"Content-Type": "application/json; charset=utf-8"},
        )

    def raw(self) -> bytes:
        """The bytes of the answer."""
        reason = HTTPStatus(self.status).phrase if self.status in set(HTTPStatus) else ""
        headers = {"Connection": "close", "Content-Length": str(len(self.body)), **self.headers}
        lines = [
            f"HTTP/1.1 {self.status} {reason}",
            *(f"{name}: {value}" for name, value in headers.items()),
            "",
            "",
        ]
        return "\r\n".join(lines).encode() + self.body


class IMDSRequest(NamedTuple):
    """A request: the path with its query, and the headers with names in lower case."""

    path: str
    headers: dict[str, str]


class FakeIMDS(ThreadingHTTPServer):
    """An HTTP server on 127.0.0.1 while the context lasts: give its `endpoint` to the agent under
    test.

    Each answer is a document or an `IMDSAnswer`. They are used in order, and the last one again and
    again; without any, the machine has one interface with an IPv6 address. Like the cloud's
    service, it refuses requests without `Metadata: true` or api-version, and forwarded ones, with
    400; these use up no answer.
    """

    daemon_threads = True

    def __init__(self, *answers: object, port: int = 0) -> None:
        documents = answers or ([network_interface(ipv6=["fd00:10:224::4"])],)
        self._answers = [
            one if isinstance(one, IMDSAnswer) else IMDSAnswer.of(one) for one in documents
        ]
        #: Every request so far, refused ones included.
        self.requests: list[IMDSRequest] = []
        self._ending = threading.Event()
        super().__init__(("127.0.0.1", port), _Handler)

    def __enter__(self) -> FakeIMDS:
        # The interval at which the server looks for its end.
        serve = {"poll_interval": 0.01}
        threading.Thread(
            target=self.serve_forever, kwargs=serve, name="fake IMDS", daemon=True
        ).start()
        return self

    def __exit__(self, *_failure: object) -> None:
        self._ending.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that closed the connection."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    @property
    def endpoint(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.server_port}"

    def pause(self, seconds: float) -> bool:
        """Wait; return True if the context has ended."""
        return self._ending.wait(seconds)

    def answer(self, request: IMDSRequest) -> IMDSAnswer:
        """Record a request and choose its answer."""
        self.requests.append(request)
        query = parse_qs(urlsplit(request.path).query)
        headers = request.headers
        if (
            headers.get("metadata", "").lower() != "true"
            or "api-version" not in query
            or "x-forwarded-for" in headers
        ):
            refusal = json.dumps(
                {"error": "Bad request. api-version, or Metadata: true, is missing, or forwarded"}
            )
            return IMDSAnswer(status=400, body=refusal.encode())
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class _Handler(BaseHTTPRequestHandler):
    server: FakeIMDS

    def do_GET(self) -> None:
        """Send the answer with its delays."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = self.server.answer(IMDSRequest(self.path, headers))
        self.close_connection = True
        if answer.closes or self.server.pause(answer.delay):
            return
        raw = answer.raw()
        size = 1 if answer.drip else len(raw)
        with suppress(OSError):
            for start in range(0, len(raw), size):
                self.wfile.write(raw[start : start + size])
                if answer.drip and self.server.pause(answer.drip):
                    return

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as http.server calls it
        """Log nothing: `requests` has all requests."""
