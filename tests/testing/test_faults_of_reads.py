"""Each call of a fake's port can fail, to read or to change, by one mechanism."""

import errno
from collections.abc import Callable

import pytest

from hostrouting import Configure, HostRoutingConfig
from hostrouting.exceptions import BackendError, HostFileError, RouteRejectedError, UnitError
from hostrouting.host import IPV6, RouteChange
from hostrouting.testing import FakeHost, MemoryBackend
from hostrouting.testing.faults import Operations
from hostrouting.testing.route_texts import route
from phases import Context, run

BLACKHOLE = RouteChange.add(route("blackhole 9.0.0.0/8"))
#: By its name, a call of each method of a backend.
CALLS: dict[str, Callable[[MemoryBackend], object]] = {
    "links": lambda node: node.links(),
    "routes": lambda node: node.routes(IPV6),
    "routes_of": lambda node: node.routes_of(142),
    "rules": lambda node: node.rules(),
    "lookup": lambda node: node.lookup([1 << 24]),
    "apply": lambda node: node.apply([BLACKHOLE]),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_of_a_backend_can_fail(name: str) -> None:
    """A planned failure of a method ignores the calls of other methods, and counts only its own."""
    node = MemoryBackend()
    node.fail_at(1, of=name)
    for other, call in CALLS.items():
        # An apply reads the routes, too.
        if other != name and (name, other) != ("routes", "apply"):
            call(node)
    with pytest.raises(BackendError, match="rtnetlink: No buffer space available") as caught:
        CALLS[name](node)
    assert caught.value.errno == errno.ENOBUFS
    node = MemoryBackend()
    node.fail_at(2, of=name)
    CALLS[name](node)


def test_calls_of_any_method_are_counted_together() -> None:
    """A planned failure without a method's name counts all calls."""
    node = MemoryBackend()
    node.fail_at(3)
    node.links()
    node.rules()
    with pytest.raises(BackendError):
        node.lookup([])
    assert node.operations.calls == [("links",), ("rules",), ("lookup",)]


def test_a_reading_within_an_apply_can_fail() -> None:
    """An apply whose reading back fails is rolled back, and one whose first reading fails changes
    nothing.
    """
    node = MemoryBackend()
    before = node.routes()
    node.fail_at(1, of="routes")
    with pytest.raises(RouteRejectedError) as refused:
        node.apply([BLACKHOLE])
    [refusal] = refused.value.refusals
    assert refusal.reason == "cannot be read back: rtnetlink: No buffer space available"
    assert refused.value.rolled_back
    assert node.routes() == before
    node.add_route("9.0.0.0/8", kind="blackhole")
    before = node.routes()
    node.fail_at(1, of="routes")
    with pytest.raises(BackendError) as caught:
        node.apply([RouteChange.remove(each) for each in before if each.kind == "blackhole"])
    assert str(caught.value) == "rtnetlink: No buffer space available"
    assert caught.value.errno == errno.ENOBUFS
    assert node.routes() == before


def test_the_files_units_and_packet_filters_of_a_machine_fail_likewise() -> None:
    """The files, units and packet filters of a fake machine fail by the name of a method, without
    regard to other calls.
    """
    host = FakeHost()
    ctx = Context()
    host.files.fail_at(1, of="write")
    host.services.fail_at(1, of="state")
    host.nftables.fail_at(1, of="table")
    assert host.files.read("/etc/hosts") is None
    with pytest.raises(HostFileError, match="cannot use the disk: No space left on device"):
        host.files.write("/etc/hosts", b"", mode=0o644)
    host.services.daemon_reload(ctx)
    with pytest.raises(UnitError, match="Failed to connect to bus: Connection refused"):
        host.services.state(ctx, "a.service")
    with pytest.raises(BackendError, match="Cannot allocate memory"):
        host.nftables.table(ctx, "ip6", "probes")


def test_an_apply_names_the_read_that_failed() -> None:
    """A run whose check cannot be made fails with the error of the reading, and the next run
    succeeds.
    """
    host = FakeHost(
        MemoryBackend(links={"eth0": ["10.224.0.4/16"]}, routes=["default via 10.224.0.1 dev eth0"])
    )
    config = HostRoutingConfig.from_mapping({"routeOverlap": {"expectedCidrs": ["172.16.8.0/22"]}})
    host.routes.fail_at(1, of="lookup")
    report = run(Configure(config, host=host))
    assert "rtnetlink: No buffer space available" in str(report.error)
    assert run(Configure(config, host=host)).ok


def test_a_method_that_does_not_exist_is_refused() -> None:
    """A failure of an unknown method is refused with the most similar name, or with all names."""
    methods = "apply or links or lookup or routes or routes_of or rules"
    for wrong, right in {"lookups": "'lookup'", "dump": methods}.items():
        with pytest.raises(ValueError, match="of must be") as caught:
            FakeHost().routes.fail_at(1, of=wrong)
        assert str(caught.value) == f"of must be {right} (got {wrong!r})"
    with pytest.raises(ValueError, match="the next operation is number 1, not 0"):
        FakeHost().files.fail_at(0)


def test_several_faults_of_one_operation_happen_in_their_order() -> None:
    """Several faults of one call happen in the order in which they were planned, and later ones are
    kept.
    """
    operations = Operations("read", "write")
    calls: list[str] = []
    operations.plan(2, lambda: calls.append("any"))
    operations.plan(1, lambda: calls.append("read"), of="read")
    operations.plan(2, lambda: calls.append("second read"), of="read")
    for call in "write", "read", "read":
        operations.record(call)
    assert calls == ["any", "read", "second read"]
