"""The metadata port: the client against a server on loopback that misbehaves in every way."""

import logging
import socket
import threading
import time
from contextlib import ExitStack
from functools import partial

import pytest
from fuzz.loopback import LoopbackService
from support.imds import FakeIMDS, IMDSAnswer, network_interface
from support.patience import ActingClock

from hostrouting.exceptions import BackendError
from hostrouting.host.imds import InstanceMetadataClient
from phases import CancelledError, Context, DeadlineExceededError
from phases.testing import ManualClock

WITH_IPV6 = [network_interface(), network_interface(ipv6=["fd00::4"], mac="000D3A123457")]
WITHOUT = [network_interface()]
#: Statuses after which no other try can succeed.
FINAL = 400, 401, 403, 405
PATH = "/metadata/instance/network/interface?api-version=2021-02-01"


def hurried() -> tuple[Context, ManualClock]:
    """Return a context whose pauses take no time, and the clock that counts them."""
    clock = ManualClock(auto=True)
    return Context(clock=clock), clock


def service_with(text: bytes) -> str:
    """Return the endpoint of a server that answers each request alike, to the byte."""
    service = LoopbackService.running()
    service.answer_with(text)
    return service.endpoint


def answer_of(imds: FakeIMDS, ctx: Context | None = None) -> object:
    return InstanceMetadataClient(imds.endpoint).network_interfaces(ctx or Context())


def gone_threads() -> bool:
    """Return True when no thread of the client is left; wait a moment for it."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        if not any(thread.name.startswith("request to ") for thread in threading.enumerate()):
            return True
        threading.Event().wait(0.005)
    return False


class TestAnswers:
    @pytest.mark.parametrize("document", [WITH_IPV6, WITHOUT, [], {"error": "none"}, None, "é"])
    def test_a_document_passes_through(self, document: object) -> None:
        """Any JSON is returned unchanged, after one request with the header and version that the
        cloud requires.
        """
        with FakeIMDS(document) as imds:
            assert answer_of(imds) == document
        [(path, headers)] = imds.requests
        assert path == PATH
        assert headers["Metadata"] == "true"

    @pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
    def test_no_proxy_is_used(self, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A request does not use the proxy that the environment names."""
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
        with FakeIMDS(WITHOUT) as imds:
            assert answer_of(imds) == WITHOUT


class TestTriesAgain:
    @pytest.mark.parametrize(
        "bad",
        [
            *(
                IMDSAnswer(status=status, body=b"not now")
                for status in (404, 410, 429, 500, 502, 503, 599)
            ),
            IMDSAnswer(closes=True),
            IMDSAnswer(body=b"[", headers={"Content-Length": "4000"}),
        ],
        ids=lambda answer: (
            "closes"
            if answer.closes
            else "truncated"
            if answer.status == 200
            else str(answer.status)
        ),
    )
    def test_a_temporary_fault_is_retried(self, bad: IMDSAnswer) -> None:
        """A request that fails twice temporarily is answered at the third try, after pauses of half
        a second and of a second.
        """
        ctx, clock = hurried()
        with FakeIMDS(bad, bad, WITH_IPV6) as imds:
            assert answer_of(imds, ctx) == WITH_IPV6
        assert len(imds.requests) == 3
        assert clock.monotonic() == 1.5

    def test_a_wait_is_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        """The first failed try is logged for operators, and later ones at a lower level."""
        caplog.set_level(logging.DEBUG)
        with FakeIMDS(IMDSAnswer(status=429), IMDSAnswer(status=503), WITHOUT) as imds:
            answer_of(imds, hurried()[0])
        assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
            ("INFO", "waiting for the cloud's metadata: 429 Too Many Requests"),
            ("DEBUG", "waiting for the cloud's metadata: 503 Service Unavailable"),
        ]

    def test_5xx_for_ever_ends_at_its_own_limit(self) -> None:
        """A service that always fails is given up after a minute of growing pauses; the error has
        URL, reason, number of tries and next step.
        """
        ctx, clock = hurried()
        with (
            FakeIMDS(IMDSAnswer(status=503, body=b"maintenance")) as imds,
            pytest.raises(
                BackendError,
                match=r"in 11 attempts .* the last: 503 Service Unavailable: 'maintenance'",
            ) as caught,
        ):
            answer_of(imds, ctx)
        assert f"at {imds.endpoint} gave no answer" in str(caught.value)
        assert f"curl --noproxy '*' -i -H Metadata:true '{imds.endpoint}{PATH}'" in str(
            caught.value
        )
        # 0.5 + 1 + 2 + 4, then six of 8, and the rest of the minute.
        assert len(imds.requests) == 11
        assert clock.monotonic() == 60

    def test_a_service_that_comes_up_late(self) -> None:
        """A service that starts to listen during the wait is reached."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        client = InstanceMetadataClient(f"http://127.0.0.1:{port}")
        clock = ActingClock()
        with ExitStack() as stack:

            def come_up() -> None:
                if clock.monotonic() == 3.5:
                    stack.enter_context(FakeIMDS(WITHOUT, port=port))

            clock.on_wait = come_up
            assert client.network_interfaces(Context(clock=clock)) == WITHOUT
        assert clock.monotonic() == 3.5


class TestRefusals:
    @pytest.mark.parametrize(
        ("answer", "shown"),
        [
            (IMDSAnswer(status=204), "204 "),
            *((IMDSAnswer(status=status, body=b"no\n"), f"{status} .*'no'") for status in FINAL),
            (IMDSAnswer(body=b""), "nothing; is another"),
            (IMDSAnswer(body=b" \n"), "nothing; is another"),
            (IMDSAnswer(body=b"<html><title>Sign in"), "'<html><title>Sign in'; is another"),
            (IMDSAnswer(body=b'[{"ipv6": '), r"'\[{\"ipv6\":'; is another"),
            (IMDSAnswer(body=b'["\xff"]'), "'\\[\"\N{REPLACEMENT CHARACTER}\"\\]'; is another"),
            (IMDSAnswer(body=b"[" * 100_000), r"'\[{100}'; is another"),
            (IMDSAnswer(body=b"{'a': 1}"), "\"{'a': 1}\"; is another"),
            (IMDSAnswer(body=b'["%b"]' % bytes(10_000_000)), "more than 256 KiB"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_other_answers_are_final(self, answer: IMDSAnswer, shown: str) -> None:
        """An answer with another status, without JSON, or too long ends the call after one request,
        with an error that shows its beginning.
        """
        with (
            FakeIMDS(answer) as imds,
            pytest.raises(BackendError, match=f"answered with .*{shown}"),
        ):
            answer_of(imds)
        assert len(imds.requests) == 1

    @pytest.mark.parametrize(
        "text",
        [
            b"HTTP/1.1 400 \x1b[2J" + b"A" * 3000 + b"\r\n\r\n",
            b"HTTP/1.1 400 Bad\r\n\r\n\x1b[2J" + b"A" * 3000,
            b"\x1b[2J" + b"A" * 3000 + b"\r\n\r\n",
        ],
        ids=["reason", "body", "no HTTP"],
    )
    def test_text_of_the_service_is_shown_harmlessly(self, text: bytes) -> None:
        """The error for a refusal stays short and printable, whatever text the service sends."""
        with pytest.raises(BackendError) as caught:
            InstanceMetadataClient(service_with(text)).network_interfaces(hurried()[0])
        assert "\\x1b[2J" in str(caught.value)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 600

    def test_a_redirect_is_not_followed(self) -> None:
        """A redirect is an error and is not followed."""
        with FakeIMDS(WITHOUT) as other:
            moved = IMDSAnswer(status=302, headers={"Location": other.endpoint})
            with (
                FakeIMDS(moved) as imds,
                pytest.raises(BackendError, match="answered with 302 Found"),
            ):
                answer_of(imds)
        assert len(imds.requests) == 1
        assert other.requests == []


class TestTime:
    @pytest.mark.parametrize(
        "slow",
        [IMDSAnswer(delay=60), IMDSAnswer(drip=0.02), IMDSAnswer(drip=0.0005, body=b" " * 200_000)],
        ids=["silent", "dripping headers", "dripping body"],
    )
    def test_a_slow_answer_is_given_up(self, slow: IMDSAnswer) -> None:
        """A request that gets no byte, or one now and then, ends at its timeout, and the next try
        follows.
        """
        ctx, _ = hurried()
        with FakeIMDS(slow, WITHOUT) as imds:
            assert (
                InstanceMetadataClient(imds.endpoint, timeout=0.15).network_interfaces(ctx)
                == WITHOUT
            )
            # On a loaded machine the good answer may be late at first, too.
            assert len(imds.requests) >= 2
            assert gone_threads()

    def test_cancelling_ends_a_slow_answer(self) -> None:
        """Cancelling ends a request long before its timeout, and leaves no thread."""
        ctx = Context()
        threading.Timer(0.05, ctx.cancel, ["maintenance"]).start()
        begin = time.monotonic()
        with FakeIMDS(IMDSAnswer(delay=60)) as imds:
            with pytest.raises(CancelledError, match="maintenance"):
                InstanceMetadataClient(imds.endpoint, timeout=30).network_interfaces(ctx)
            assert time.monotonic() - begin < 10
            assert gone_threads()

    def test_cancelling_ends_a_pause(self) -> None:
        """Cancelling ends the pause between two tries."""
        ctx = Context(clock=(clock := ActingClock()))
        clock.on_wait = partial(ctx.cancel, "maintenance")
        with (
            FakeIMDS(IMDSAnswer(status=500)) as imds,
            pytest.raises(CancelledError, match="maintenance"),
        ):
            answer_of(imds, ctx)
        assert len(imds.requests) == 1

    def test_a_deadline_ends_the_first_try(self) -> None:
        """A deadline during the first try raises an error that the service has not answered yet."""
        with (
            FakeIMDS(IMDSAnswer(delay=60)) as imds,
            pytest.raises(BackendError, match=r"in 1 attempt .* not answered yet"),
        ):
            answer_of(imds, Context(timeout=0.2))

    def test_a_context_that_is_over_sends_nothing(self) -> None:
        """A context that is over sends no request, and its error is raised unchanged."""
        with FakeIMDS() as imds, pytest.raises(DeadlineExceededError):
            answer_of(imds, Context(timeout=0))
        assert imds.requests == []
