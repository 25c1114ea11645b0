"""The routes of one network after an event, where the state machine of the two worlds draws no such event."""

from __future__ import annotations

import pytest

from hostrouting.fib.buckets import after, fits
from hostrouting.host import ObservedRoute

BY_OBJECT = ObservedRoute.parse("9.0.0.0/8", "eth0", protocol=3, nexthop_id=7)
CHANGED = BY_OBJECT._replace(dev="eth1")
OTHER = ObservedRoute.parse("9.0.0.0/8", "eth0", protocol=16)
FARTHER = OTHER._replace(metric=7)


def test_a_changed_nexthop_object() -> None:
    """The kernel announces its routes as replaced wherever they stand: only one alone in its place fits."""
    assert fits((BY_OBJECT, FARTHER), "replace", CHANGED)
    assert after((BY_OBJECT, FARTHER), "replace", CHANGED) == (CHANGED, FARTHER)
    assert not fits((OTHER, BY_OBJECT), "replace", CHANGED)
    assert after((OTHER, BY_OBJECT), "replace", CHANGED) == (OTHER, CHANGED)


@pytest.mark.parametrize(
    ("verb", "bucket"),
    [
        ("remove", ()),
        ("remove", (FARTHER,)),
        ("add", (CHANGED,)),
        ("add", (OTHER,)),
        *((verb, bucket) for verb in ("prepend", "append", "replace") for bucket in ((), (FARTHER,), (OTHER, CHANGED))),
    ],
)
def test_events_that_do_not_fit(verb: str, bucket: tuple[ObservedRoute, ...]) -> None:
    """A route cannot go that was not there, nor come a second time; it is alone in its place exactly if it is added."""
    assert not fits(bucket, verb, CHANGED)
