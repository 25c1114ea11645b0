"""Wrappers of a route backend that lie about one thing each, for which the contract fails."""

import errno
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from importlib import import_module
from inspect import signature, unwrap
from itertools import chain, groupby
from operator import methodcaller
from threading import Barrier
from typing import Any, cast

import attrs
import pytest
from support.kernel import needs_kernel

from hostrouting.exceptions import (
    BackendError,
    LinkNotFoundError,
    PermissionDeniedError,
    Refusal,
    RouteRejectedError,
)
from hostrouting.host import (
    IPV4,
    IPV6,
    ObservedRoute,
    Route,
    RouteBackend,
    RouteChange,
    Rule,
)
from hostrouting.host.netlink import NetlinkBackend
from hostrouting.net.routes import FLAG_LINKDOWN, route_key
from hostrouting.testing import KernelNode, MemoryBackend, Node
from hostrouting.testing.contracts import RouteBackendContract
from hostrouting.testing.contracts.routes import MULTIPATH

#: By its name, an attribute of a wrapper: a function of the right backend returns it.
Lies = dict[str, Callable[[Any], Any]]


class Wrapper:
    """A backend that passes each call to a right one, but for the methods that lie."""

    def __init__(self, inner: RouteBackend, lies: Lies) -> None:
        self.inner = inner
        self.__dict__ |= {name: lie(inner) for name, lie in lies.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


# --- how to lie


def wraps(method: str, answer: Callable[[partial[Any]], Any]) -> Lies:
    """Answer in place of a method, from the call that the right backend would get."""
    return {method: lambda inner: lambda *a, **b: answer(partial(getattr(inner, method), *a, **b))}


def shows(method: str, change: Callable[[Any], Any]) -> Lies:
    """Change what a method returns."""
    return wraps(method, lambda call: change(call()))


def each(method: str, change: Callable[[Any], Any]) -> Lies:
    """Change each value in what a method returns."""
    return shows(method, lambda values: [*map(change, values)])


def sets(method: str, **fields: Any) -> Lies:
    """Show these fields of each value."""
    return each(method, methodcaller("_replace", **fields))


def decides(**fields: Any) -> Lies:
    """Show these fields of each route that decides."""
    return each("lookup", lambda one: one._replace(route=one.route._replace(**fields)))


def owns(change: Callable[[Any], list[Any]]) -> Lies:
    """Change each address of a link."""
    return each(
        "links",
        lambda one: one._replace(addresses=tuple(chain.from_iterable(map(change, one.addresses)))),
    )


def calls(method: str, **options: Any) -> Lies:
    """Give a method these options, whatever the caller gives."""
    return wraps(method, lambda call: call(**options))


def remembers(method: str) -> Lies:
    """Answer the same call as the first time."""
    answers: dict[object, Any] = {}

    def remembered(call: partial[Any]) -> Any:
        key = call.func, str((call.args, call.keywords))
        answers[key] = answers.get(key) or call()
        return answers[key]

    return wraps(method, remembered)


def fails(method: str, change: Callable[[Any], BaseException]) -> Lies:
    """Raise another error than the right backend."""

    def failing(call: partial[Any]) -> Any:
        try:
            return call()
        except BackendError as error:
            raise change(error) from None

    return wraps(method, failing)


def rejected(**fields: Any) -> Lies:
    """Set fields of the error of a refused batch."""

    def change(error: BackendError) -> BackendError:
        vars(error).update(fields)
        return error

    return fails("apply", change)


def applies(change: Callable[[RouteBackend, Sequence[RouteChange]], object]) -> Lies:
    """Apply changes in another way."""
    return {"apply": lambda inner: lambda changes, **_: change(inner, changes)}


def installs(verb: str) -> Lies:
    """Install each route in the same way."""
    return applies(
        lambda inner, changes: inner.apply([attrs.evolve(one, verb=verb) for one in changes])
    )


# --- single is


def one_by_one(inner: RouteBackend, changes: Sequence[RouteChange]) -> None:
    for change in changes:
        inner.apply([change])


def named_by_text(error: RouteRejectedError) -> RouteRejectedError:
    """Name each refused change by its text."""
    refusals = [attrs.evolve(each, change=cast("Any", str(each.change))) for each in error.refusals]
    return RouteRejectedError(refusals, rolled_back=True)


def overwriting(inner: RouteBackend, changes: Sequence[RouteChange]) -> None:
    """Put removed routes back by `replace`."""
    assert isinstance(inner, MemoryBackend)
    *removals, refused = changes
    inner.apply(removals)
    try:
        inner.apply([refused])
    except RouteRejectedError:
        for change in reversed(removals):
            inner.insert_route(change.route, verb="replace")
        raise


def forgetful(inner: RouteBackend, changes: Sequence[RouteChange]) -> None:
    """Put a removed route back without what has no field."""
    assert isinstance(inner, MemoryBackend)
    try:
        inner.apply(changes)
    except RouteRejectedError:
        [lost] = inner.routes_of(142)
        inner.insert_route(attrs.evolve(lost.to_route(), extra=()), verb="replace")
        raise


def by_destination(inner: RouteBackend, changes: Sequence[RouteChange]) -> None:
    """Remove the first route to each destination."""
    for change in changes:
        routes = inner.routes(change.route.family)
        [first, *_] = [one for one in routes if one.network == change.route.network]
        inner.apply([RouteChange.remove(first)])


def backwards(values: list[Any]) -> list[Any]:
    return values[::-1]


def any_place(routes: Iterable[Any]) -> list[Any]:
    """Reverse the order within each place."""
    shown: list[Any] = []
    for _, same in groupby(routes, route_key):
        shown += reversed([*same])
    return shown


def mixed(inner: RouteBackend) -> Callable[..., Any]:
    """Keep the destinations in one variable for all threads."""
    barrier = Barrier(4, timeout=10)
    families: list[int] = []

    def lookup(destinations: Sequence[int]) -> Any:
        families[:] = destinations
        barrier.wait()
        return inner.lookup([*families])

    return lookup


METHODS = "links", "routes", "routes_of", "rules", "lookup", "apply"
#: A route with these fields has lost what it had in them.
LOST = {
    "metric": 0,
    "source": None,
    "scope": 0,
    "table": 254,
    "protocol": 3,
    "kind": "unicast",
    "gateway": None,
    "dev": "eth0",
}
REMEMBERED = {f"{name}: remembered": remembers(name) for name in METHODS[:5]}
OTHER_ERRORS = {
    f"{name}: an OSError": fails(name, lambda error: OSError(str(error))) for name in METHODS
}
LOST_FIELDS = {f"{name}: lost": sets("routes", **{name: value}) for name, value in LOST.items()}
#: By the test that catches it, each lie by its name.
LIES: dict[str, dict[str, Lies]] = {
    "test_nothing_is_remembered": REMEMBERED,
    "test_every_failure_is_a_backend_error": OTHER_ERRORS,
    "test_routes_of_one_table_are_ordered": {
        "any order of routes": shows("routes", backwards),
        "routes of every protocol": {"routes_of": lambda inner: lambda _, *a: inner.routes(*a)},
        **LOST_FIELDS,
    },
    "test_unknown_attributes_are_kept": {
        "metrics: lost": sets("routes", extra=()),
        "metrics: lost by a rollback": applies(forgetful),
        "metrics: installed though declared as lost": {"keeps_metrics": lambda _: False},
    },
    "test_a_route_without_carrier_is_marked": {
        "routes without linkdown": sets("routes", flags=0),
        "answers without linkdown": decides(flags=0),
    },
    "test_a_multipath_route_shows_every_leg": {
        "any order of next hops": each("routes", lambda one: one._replace(nexthops=one.hops[::-1])),
        "answers without next hops": decides(nexthops=()),
    },
    "test_a_replacement_takes_the_named_route_alone": {
        "any order in a place": shows("routes", any_place)
    },
    "test_secondary_addresses_are_marked": {
        "secondary: lost": owns(lambda own: [own._replace(secondary=False)])
    },
    "test_links_have_addresses_of_both_families": {
        "addresses of IPv4 alone": owns(lambda own: [own] * (own.family == IPV4)),
        "scope of an address: lost": owns(lambda own: [own._replace(scope=0)]),
    },
    "test_links_come_with_state_and_addresses": {
        "carrier: always": sets("links", carrier=True),
        "up: always": sets("links", up=True),
        "any order of links": shows("links", sorted),
        "loopback: lost": sets("links", loopback=False),
    },
    "test_known_neighbours_belong_to_their_link": {
        "neighbours: lost": sets("links", neighbours=())
    },
    "test_failed_neighbours_belong_to_their_link": {"failed: lost": sets("links", failed=())},
    "test_rules_come_in_the_order_of_their_priority": {
        "any order of rules": shows("rules", backwards),
        "mask of a mark: lost": sets("rules", mark_mask=0xFFFFFFFF),
        "selectors: lost": each("rules", lambda rule: Rule(*rule[:7])),
    },
    "test_the_rules_of_a_fresh_node": {
        "IPv6 in name alone": {"rules": lambda inner: lambda family: inner.rules(family & IPV4)}
    },
    "test_many_lookups_keep_their_order": {
        "1,000 answers": shows("lookup", lambda answers: answers[:1000]),
        "any order of answers": shows("lookup", backwards),
    },
    "test_the_deciding_route_answers": {
        "one errno": each(
            "lookup", lambda one: one._replace(errno=one.errno and errno.ENETUNREACH)
        ),
        "answers without a prefix": each(
            "lookup",
            lambda one: one._replace(route=one.route and one.route._replace(prefix_length=32)),
        ),
    },
    "test_a_route_by_source_hides_the_others": {"ignored sources": calls("lookup", sources=None)},
    "test_sources_must_match_destinations": {"uncounted sources": calls("lookup", sources=None)},
    "test_resolving_names_the_path_and_the_source": {
        "ignored resolve": calls("lookup", resolve=False)
    },
    "test_lookups_from_many_threads_do_not_mix": {"mixed threads": {"lookup": mixed}},
    "test_verification_finds_a_route_that_did_not_last": {
        "nothing is verified": calls("apply", verify=False),
        "everything is verified": calls("apply", verify=True),
    },
    "test_an_incomplete_rollback_is_reported": {
        "rolled_back: always": rejected(rolled_back=True),
        "left_behind: never": rejected(left_behind=[]),
        "left_behind: another route": rejected(left_behind=["9.0.0.0/8 dev eth0"]),
    },
    "test_every_refusal_is_named": {
        "one refusal": fails(
            "apply", lambda error: RouteRejectedError(error.refusals[:1], rolled_back=True)
        )
    },
    "test_each_reason_has_its_errno": {
        "one errno of refusals": rejected(errno=errno.EINVAL),
        "a refusal of a text": fails("apply", named_by_text),
    },
    "test_a_lack_of_privilege_has_its_error": {
        "a refusal": fails("apply", lambda _: RouteRejectedError([], rolled_back=True)),
        "another errno": fails(
            "apply", lambda _: PermissionDeniedError("it was refused", errno=errno.EINVAL)
        ),
    },
    "test_a_missing_device_is_named_before_anything_is_done": {
        "a refusal": fails("apply", lambda _: RouteRejectedError([], rolled_back=True)),
        "another device": fails("apply", lambda _: LinkNotFoundError("absent", dev="eth0")),
        "one by one": applies(one_by_one),
    },
    "test_changes_are_made_in_their_order": {
        "any order of changes": applies(lambda inner, changes: inner.apply(changes[::-1]))
    },
    "test_one_refusal_undoes_the_whole_batch": {
        "one by one": applies(one_by_one),
        "rolled_back: never": rejected(rolled_back=False),
        "left_behind: always": rejected(left_behind=["9.0.0.0/8 dev eth0"]),
    },
    "test_a_rollback_keeps_the_order_of_a_place": {
        "a rollback that overwrites": applies(overwriting)
    },
    "test_exactly_the_named_route_is_removed": {"any removal": applies(by_destination)},
    "test_a_removal_of_ipv6_never_takes_another_route": {"any removal": applies(by_destination)},
    "test_what_another_program_changed_meanwhile_is_not_overwritten": {
        "another errno": rejected(errno=errno.EINVAL)
    },
    "test_an_added_route_is_as_wanted": {"nothing is done": applies(lambda *_: None)},
    "test_a_prepended_route_decides": {"a route behind the others": installs("append")},
    "test_an_appended_route_stands_behind": {"a route before the others": installs("prepend")},
}
#: The tests for which a lie concerns IPv6.
OF_IPV6 = "test_a_multipath_route_shows_every_leg", "test_the_rules_of_a_fresh_node"


def keeps(promise: str, node: Node, backend: RouteBackend, failing: RouteBackend) -> None:
    """Run one test of the contract on a fresh node."""
    contract = RouteBackendContract()
    test = getattr(contract, promise)
    wanted = {*signature(test).parameters}
    family = IPV4
    if promise in OF_IPV6 or "six" in wanted:
        family = IPV6
    if wanted & {"eth0", "six", "world"}:
        unwrap(RouteBackendContract.eth0)(contract, node)
        if family == IPV6:
            unwrap(RouteBackendContract.six)(contract, node, backend)
    if "denied" in wanted:
        assert isinstance(node, MemoryBackend)
        node.refuse_at(1, number=errno.EPERM)
    given = {"family": family, "backend": backend, "failing": failing, "denied": backend}
    test(**{name: given.get(name, node) for name in wanted})


@pytest.mark.parametrize(
    ("promise", "name"), [(promise, name) for promise, lies in LIES.items() for name in lies]
)
def test_a_lie_is_caught(promise: str, name: str) -> None:
    """A wrapper that breaks one promise fails its test, which the right backend passes."""
    absent = NetlinkBackend(netns="hostrouting-absent")
    right = MemoryBackend()
    keeps(promise, right, right, absent)
    node = MemoryBackend()
    lies = LIES[promise][name]
    with pytest.raises((AssertionError, pytest.fail.Exception, BackendError, OSError, ValueError)):
        keeps(promise, node, Wrapper(node, lies), Wrapper(absent, lies))


def test_a_backend_may_declare_that_it_does_not_keep_metrics() -> None:
    """A backend that declares that it does not keep metrics passes if it refuses a route with
    metrics.
    """

    def refuse(_: object, changes: Sequence[RouteChange]) -> None:
        reason = "metrics are not kept: remove them from the route"
        raise RouteRejectedError([Refusal(changes[0], 95, reason)], rolled_back=True)

    node = MemoryBackend()
    backend = Wrapper(node, {"keeps_metrics": lambda _: False, **applies(refuse)})
    keeps("test_unknown_attributes_are_kept", node, backend, backend)


def test_a_comparison_that_fails_names_the_field() -> None:
    """A promise that a backend breaks by a field which no route shows as text names that field,
    its value and the right one.
    """
    node = MemoryBackend()
    backend = Wrapper(node, sets("routes", flags=FLAG_LINKDOWN))
    with pytest.raises(AssertionError, match=r"9\.0\.0\.0/8 .*: flags is 16, not 0"):
        keeps("test_a_prepended_route_decides", node, backend, backend)


class ContractInMemory(RouteBackendContract):
    """The promises of the contract that the model of a node can keep."""

    test_a_lack_of_privilege_has_its_error: Any = None
    test_the_nexthop_object_of_a_route_is_kept: Any = None

    @pytest.fixture
    def node(self) -> MemoryBackend:
        return MemoryBackend()

    @pytest.fixture
    def backend(self, node: MemoryBackend) -> Any:
        return node

    @pytest.fixture
    def failing(self) -> RouteBackend:
        return NetlinkBackend(netns="hostrouting-absent")


class TestOtherWords(ContractInMemory):
    """The contract for a backend that prints routes in other words, as a new attribute may bring
    another.
    """

    @pytest.fixture(autouse=True)
    def other_words(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Print every route with one more word, as those that have a new attribute."""
        for of_routes in Route, ObservedRoute:
            printed = of_routes.__str__
            monkeypatch.setattr(
                of_routes, "__str__", lambda one, printed=printed: f"{printed(one)} mtu 1400"
            )


class TestOtherErrors(ContractInMemory):
    """The contract for a backend whose errors have other words."""

    @pytest.fixture
    def backend(self, node: MemoryBackend) -> Any:
        return Wrapper(node, {**fails("apply", other_words), **wraps("lookup", in_other_words)})


def other_words(error: BackendError) -> BackendError:
    """Return an error with the same fields, and other words for the rest."""
    if isinstance(error, LinkNotFoundError):
        return LinkNotFoundError("a device is absent", dev=error.dev)
    if isinstance(error, RouteRejectedError):
        refusals = [attrs.evolve(each, reason="it was refused") for each in error.refusals]
        left = error.left_behind
        return RouteRejectedError(refusals, rolled_back=error.rolled_back, left_behind=left)
    return error


def in_other_words(call: partial[Any]) -> Any:
    """Answer as the right backend, or refuse in other words."""
    try:
        return call()
    except ValueError:
        raise ValueError("the sources do not fit") from None


@needs_kernel
def test_a_lost_nexthop_object_is_caught() -> None:
    """A wrapper that loses the nexthop object of a route fails on the kernel, as the model has no
    such object.
    """
    promise = "test_the_nexthop_object_of_a_route_is_kept"
    for lies, outcome in (
        ({}, nullcontext()),
        (sets("routes", nexthop_id=0), pytest.raises(AssertionError, match="nexthop_id")),
    ):
        with KernelNode.made() as node, outcome:
            right = NetlinkBackend(netns=node.name)
            keeps(promise, node, Wrapper(right, lies), right)


@needs_kernel
def test_a_dead_next_hop_shown_alive_is_caught() -> None:
    """A wrapper that shows a dead next hop alive fails on the kernel, which alone decides about
    several next hops.
    """
    promise = "test_a_dead_next_hop_is_seen"
    with KernelNode.made() as node:
        right = NetlinkBackend(netns=node.name)
        keeps(promise, node, Wrapper(right, {}), right)
    alive = sets("routes", nexthops=tuple(MULTIPATH[IPV4].nexthops))
    with KernelNode.made() as node:
        right = NetlinkBackend(netns=node.name)
        with pytest.raises(AssertionError):
            keeps(promise, node, Wrapper(right, alive), right)


def test_without_pytest_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import of the contracts without pytest is an error that names the extra to install."""
    monkeypatch.setitem(sys.modules, "pytest", None)
    monkeypatch.delitem(sys.modules, "hostrouting.testing.contracts")
    with pytest.raises(ImportError, match=r"pytest.*: run pip install 'hostrouting\[testing\]'"):
        import_module("hostrouting.testing.contracts")
