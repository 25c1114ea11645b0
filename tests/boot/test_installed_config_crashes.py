"""A run may be killed between any two of its steps: the installed config is that of the scripts, and a reset
removes the installed config first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from support.boots import READY
from support.command_line import ROUTES
from support.patience import at_once
from support.run_nodes import GATES, OVERLAP, PROBES, SWEEP, apply, config, node

from hostrouting import Configure, HostRoutingConfig, Reset
from hostrouting.boot.installed_config import read_installed_config
from hostrouting.boot.layout import CONFIG_PATH, GENERATION_LINK, drop_in_of
from hostrouting.boot.steps import IDLE
from hostrouting.testing import FakeHost
from phases import execute

OTHER_ROUTES = {"staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/21"}]}}
if TYPE_CHECKING:
    Story = Callable[[FakeHost], object]

FIRST = {**ROUTES, **OVERLAP, **PROBES, "watch": {"enabled": True}}
SECOND = {**OTHER_ROUTES, "routeOverlap": {"expectedCidrs": ["10.96.0.0/16"]}, **SWEEP}
CHANGING = {"write", "link", "remove", "remove_directory_if_empty"}


class KilledError(BaseException):
    """The end of a process: nothing catches it."""


def one(host: FakeHost) -> None:
    apply(host, **FIRST)


def other(host: FakeHost) -> None:
    apply(host, **SECOND)


def only_probes(host: FakeHost) -> None:
    apply(host, **PROBES, **SWEEP)


def reset(host: FakeHost) -> None:
    execute(Reset(HostRoutingConfig(), host=host), at_once())


def nothing(host: FakeHost) -> None:
    """Leave the node as it is."""


STORIES = {
    "a first apply": (nothing, one),
    "another config": (one, other),
    "a config of probes alone": (one, only_probes),
    "routes are added to probes": (only_probes, one),
    "a reset": (one, reset),
    "a reset of probes": (only_probes, reset),
}


@pytest.mark.slow
@pytest.mark.parametrize(("prepare", "story"), STORIES.values(), ids=STORIES.keys())
def test_intent_and_scripts_are_of_one_config(prepare: Story, story: Story) -> None:
    """Wherever a run is killed, an installed config on the disk is that of the scripts of a boot, and the
    next run completes.
    """
    before = prepared(prepare)
    after = prepared(prepare)
    story(after)
    wanted = {read_installed_config(host.files): scripts(host) for host in (before, after)}
    for host in killed(prepare, story):
        found = read_installed_config(host.files)
        # A first apply enables the units in turn.
        assert found is None or scripts(host).items() <= wanted[found].items()
        assert found is None or prepare is nothing or scripts(host) == wanted[found]
        story(host)
        assert read_installed_config(host.files) == read_installed_config(after.files)


@pytest.mark.slow
def test_a_reader_after_a_kill_has_a_whole_config() -> None:
    """Wherever a change of config is killed, an apply of the installed config ends in the node of one of the
    two configs.
    """
    whole = []
    for sections in FIRST, SECOND:
        host = prepared(one)
        execute(Configure(config(**sections), host=host), at_once())
        whole.append((host.routes.routes(), etc(host)))
    assert whole[0] != whole[1]
    for host in killed(one, other):
        found = read_installed_config(host.files)
        assert found is not None
        execute(Configure(found, host=host), at_once())
        assert (host.routes.routes(), etc(host)) in whole


@pytest.mark.slow
@pytest.mark.parametrize("prepare", [one, other])
def test_a_reset_removes_it_first(prepare: Story) -> None:
    """A reset that is killed after any change of a boot file has removed the installed config, so nothing
    restores the rest.
    """
    before = etc(prepared(prepare))
    for host in killed(prepare, reset):
        gone = before.keys() - etc(host).keys()
        assert not gone or CONFIG_PATH in gone


@pytest.mark.parametrize("modes", [("WARN", "STRICT"), ("STRICT", "WARN")])
def test_a_gate_is_strict_as_long_as_its_scripts(modes: tuple[str, str]) -> None:
    """An apply makes the drop-in of a gate strict before the scripts, and lenient after them."""
    first, second = ({**OVERLAP["routeOverlap"], "mode": mode} for mode in modes)
    host = node()
    apply(host, routeOverlap=first)
    begun = len(host.files.operations.calls)
    apply(host, routeOverlap=second)
    paths = [path for verb, path, *_ in host.files.operations.calls[begun:] if verb in CHANGING]
    gate_first = paths.index(drop_in_of(GATES["gates"][0])) < paths.index(GENERATION_LINK)
    assert gate_first == (modes[1] == "STRICT")


def etc(host: FakeHost) -> dict[str, str]:
    """Return all files that survive a boot."""
    return {
        path: text for path, text in host.files.tree.snapshot().items() if path.startswith("/etc/")
    }


def prepared(prepare: Story) -> FakeHost:
    host = node()
    prepare(host)
    return host


def killed(prepare: Story, story: Story) -> Iterator[FakeHost]:
    """Yield a node for each change of a file in a story, killed right before it."""
    host = prepared(prepare)
    begun = len(host.files.operations.calls)
    story(host)
    calls = host.files.operations.calls[begun:]
    numbers = [number for number, (verb, *_) in enumerate(calls, start=1) if verb in CHANGING]
    assert len(numbers) > 3
    for number in numbers:
        host = prepared(prepare)
        host.files.fail_at(number, KilledError())
        with pytest.raises(KilledError):
            story(host)
        yield host


def scripts(host: FakeHost) -> dict[str, bytes]:
    """Return the scripts that a boot runs, by unit; those that do nothing are left out."""
    names = host.files.names(f"{READY}.requires")
    found = {
        name: host.files.read(f"/etc/aks-flex-node/{name.replace('.service', '.sh')}")
        for name in names
    }
    return {name: script for name, script in found.items() if script is not None and script != IDLE}
