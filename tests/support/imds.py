"""FakeIMDS: a metadata service on loopback with the answers, delays and faults that a test chooses."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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

    def raw(self) -> bytes:
        """The bytes of the answer."""
        reason = HTTPStatus(self.status).phrase if self.status in set(HTTPStatus) else ""
        headers = {"Connection": "close", "Content-Length": str(len(self.body)), **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"HTTP/1.1 {self.status} {reason}\r\n{lines}\r\n".encode() + self.body


class FakeIMDS(ThreadingHTTPServer):
    """An HTTP server on 127.0.0.1 while the context lasts: give its `endpoint` to the agent under
    test.

    Each answer is a document or an `IMDSAnswer`. They are used in order, and the last one again and
    again; without any, the machine has one interface with an IPv6 address.
    """

    daemon_threads = True

    def __init__(self, *answers: object, port: int = 0) -> None:
        documents = answers or ([network_interface(ipv6=["fd00:10:224::4"])],)
        self._answers = [
            one if isinstance(one, IMDSAnswer) else IMDSAnswer(body=json.dumps(one).encode())
            for one in documents
        ]
        #: The path and the headers of every request so far.
        self.requests: list[tuple[str, Message]] = []
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

    @property
    def endpoint(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.server_port}"

    def pause(self, seconds: float) -> bool:
        """Wait; return True if the context has ended."""
        return self._ending.wait(seconds)

    def answer(self, path: str, headers: Message) -> IMDSAnswer:
        """Record a request and choose its answer."""
        self.requests.append((path, headers))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class _Handler(BaseHTTPRequestHandler):
    server: FakeIMDS

    def do_GET(self) -> None:
        """Send the answer with its delays."""
        answer = self.server.answer(self.path, self.headers)
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
