import copy
import inspect
import pickle
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given

import hostrouting.exceptions
import phases
from hostrouting import (
    BackendError,
    ConfigError,
    ConfigMistake,
    EventsLostError,
    HostFileError,
    HostRoutingConfig,
    HostRoutingError,
    InvalidConfigError,
    LinkNotFoundError,
    LockHeldError,
    PermissionDeniedError,
    Refusal,
    RouteOverlapError,
    RouteRejectedError,
    StaleCNIError,
    ToolNotFoundError,
    UnitError,
    UnreadableConfigError,
    WorseRoutingError,
    prove_egress,
)
from hostrouting.exceptions import NeighbourRejectedError
from hostrouting.net.links import Neighbour
from hostrouting.testing import MemoryBackend
from phases import (
    CancelledError,
    CommandFailedError,
    DeadlineExceededError,
    PhaseError,
    TaskFailedError,
    UnknownTaskError,
)

texts = st.text(max_size=20)
lists = st.lists(texts, max_size=3)
errnos = st.none() | st.integers(1, 133)
REPORT = prove_egress(MemoryBackend(), ["172.16.0.0/16"])

BACKEND_ERRORS = st.one_of(
    st.builds(BackendError, texts, errno=errnos, retryable=st.booleans()),
    st.builds(LinkNotFoundError, texts, dev=texts, errno=errnos, retryable=st.booleans()),
    st.builds(PermissionDeniedError, texts, errno=errnos),
    st.builds(EventsLostError, texts, errno=errnos),
    st.builds(
        RouteRejectedError,
        st.lists(st.builds(Refusal, texts, st.integers(1, 133), texts), min_size=1, max_size=3),
        rolled_back=st.booleans(),
        left_behind=lists,
    ),
    st.builds(
        NeighbourRejectedError,
        st.lists(st.builds(Refusal, texts, st.integers(1, 133), texts), min_size=1, max_size=3),
        st.lists(st.builds(Neighbour, texts, texts, texts, st.booleans()), max_size=3),
    ),
    st.builds(ToolNotFoundError, texts, package=texts, purpose=texts),
)
HOST_ERRORS = st.one_of(
    st.builds(HostRoutingError, texts),
    st.builds(InvalidConfigError, st.lists(st.builds(ConfigMistake, texts, texts), min_size=1, max_size=3)),
    BACKEND_ERRORS,
    st.builds(ConfigError, texts),
    st.builds(UnreadableConfigError, texts),
    st.builds(RouteOverlapError, st.just(REPORT), retryable=st.booleans()),
    st.builds(StaleCNIError, texts),
    st.builds(UnitError, texts),
    st.builds(HostFileError, texts),
    st.builds(LockHeldError, texts),
)
FAILURES = st.recursive(
    st.builds(TaskFailedError, lists, HOST_ERRORS),
    lambda inner: st.builds(TaskFailedError, lists, HOST_ERRORS, others=st.lists(inner, max_size=2)),
    max_leaves=4,
)
PHASE_ERRORS = st.one_of(
    st.builds(PhaseError, texts),
    st.builds(CancelledError, texts),
    st.builds(DeadlineExceededError, st.floats(0, 1e6)),
    st.builds(UnknownTaskError, st.lists(texts, min_size=1, max_size=2), lists),
    st.builds(CommandFailedError, lists, st.none() | st.integers(-64, 255), stdout=texts, stderr=texts),
    FAILURES,
)


def shown(value: object) -> object:
    """Return a value that compares errors, inside errors too, by all that a reader can see of them."""
    if isinstance(value, BaseException):
        return type(value), str(value), value.args, shown(vars(value))
    if isinstance(value, dict):
        return {name: shown(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(each) for each in value]
    return value


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])  # noqa: S301 (its own pickle)
@given(error=HOST_ERRORS | PHASE_ERRORS)
def test_a_copied_or_pickled_error_is_the_same(again: Callable[[Exception], Exception], error: Exception) -> None:
    """Type, message and attributes survive, so an error may cross a process boundary."""
    copied = again(error)
    assert shown(copied) == shown(error)
    if isinstance(error, TaskFailedError):
        assert isinstance(copied, TaskFailedError)
        assert copied.__cause__ is copied.cause


def test_every_error_says_if_a_retry_can_help() -> None:
    """By default it cannot; what a lease, a carrier or the end of another run may mend can be tried again."""
    retried = LockHeldError("x"), EventsLostError("x"), BackendError("x", retryable=True), DeadlineExceededError(1)
    final = InvalidConfigError([]), UnreadableConfigError("x"), UnitError("x"), BackendError("x"), CancelledError("x")
    assert [error.retryable for error in retried] == [True] * 4
    assert [error.retryable for error in final] == [False] * 5


def test_a_refused_and_an_unreadable_config_are_config_errors() -> None:
    """One `except` has both; an unreadable one is a file's error, too."""
    with pytest.raises(ConfigError) as caught:
        HostRoutingConfig.from_file("/nonexistent")
    assert isinstance(caught.value, HostFileError)
    with pytest.raises(ConfigError):
        HostRoutingConfig.from_json("{")


def test_every_error_class_is_copied_here() -> None:
    """A new error class without an example above fails this test."""
    built = {
        *(HostRoutingError, InvalidConfigError, BackendError, LinkNotFoundError, PermissionDeniedError),
        *(
            NeighbourRejectedError,
            RouteRejectedError,
            ToolNotFoundError,
            RouteOverlapError,
            StaleCNIError,
            UnitError,
            HostFileError,
        ),
        *(
            WorseRoutingError,
            LockHeldError,
            PhaseError,
            CancelledError,
            DeadlineExceededError,
            UnknownTaskError,
            CommandFailedError,
        ),
        *(TaskFailedError, EventsLostError, ConfigError, UnreadableConfigError),
    }
    public = {
        value
        for module in (hostrouting.exceptions, phases)
        for value in map(vars(module).get, module.__all__)
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert public == built
