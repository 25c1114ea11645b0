"""The doorways: their exports, the modules that an import loads, and that every example in a docstring runs."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import hostrouting
import phases

ROOMS = [
    "hostrouting",
    "hostrouting.config",
    "hostrouting.exceptions",
    "hostrouting.host",
    "hostrouting.probe_snat",
    "hostrouting.stale_cni",
    "hostrouting.testing",
    "hostrouting.testing.contracts",
    "hostrouting.testing.strategies",
    "phases",
]


def modules() -> list[str]:
    names = []
    for package in hostrouting, phases:
        names += [package.__name__]
        names += [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return names


@pytest.mark.parametrize("name", ROOMS)
def test_a_doorway_exports_what_it_says(name: str) -> None:
    """Everything in `__all__` is there, is public, and has a docstring (ruff keeps the list sorted)."""
    room = importlib.import_module(name)
    exported = room.__all__
    assert len(set(exported)) == len(exported)
    for public in exported:
        assert not public.startswith("_")
        assert hasattr(room, public)
        assert public.isupper() or getattr(room, public).__doc__, public


def test_the_front_door_is_pinned() -> None:
    """The names at the top are decided here, not by accident."""
    assert hostrouting.__all__ == [
        "CheckRouteOverlap",
        "CleanStaleCNI",
        "Configure",
        "ConfigureProbeSNAT",
        "ConfigureStaticRoutes",
        "Host",
        "HostRoutingConfig",
        "OverlapMode",
        "OverlapReport",
        "ProbeSNATConfig",
        "RouteOverlapConfig",
        "StaleCNIConfig",
        "StaleCNIForce",
        "StaticRoute",
        "StaticRoutesConfig",
        "WatchConfig",
        "prove_egress",
    ]


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    """The front door loads late, and still answers like any module."""
    with pytest.raises(AttributeError, match="module 'hostrouting' has no attribute 'Hots'"):
        _ = hostrouting.Hots


def loaded_by(statement: str) -> set[str]:
    program = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_importing_loads_no_netlink_and_no_test_tools() -> None:
    """`import hostrouting` and its config work without pyroute2, and load nothing that a boot path need not pay for."""
    heavy = {"pyroute2", "asyncio", "pytest", "hypothesis", "subprocess", "ipaddress", "json", "logging", "ctypes"}
    assert loaded_by("import hostrouting") & {"attr", *heavy} == set()
    assert loaded_by("import hostrouting.config, hostrouting.host") & heavy == set()
    assert loaded_by("import hostrouting.testing") & {"pyroute2", "pytest", "hypothesis"} == set()


def test_nothing_outside_the_adapters_names_pyroute2() -> None:
    """Only adapters import it, and only inside functions."""
    for name in modules():
        source = Path(str(importlib.import_module(name).__file__)).read_text(encoding="utf-8")
        at_the_top = [
            node
            for node in ast.parse(source).body
            if isinstance(node, ast.Import | ast.ImportFrom) and "pyroute2" in ast.unparse(node)
        ]
        assert at_the_top == [], name


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_docstrings_run(name: str) -> None:
    """Every example of a docstring gives the output that it shows."""
    module = importlib.import_module(name)
    flags = doctest.IGNORE_EXCEPTION_DETAIL if name.endswith("exceptions") else 0
    outcome = doctest.testmod(module, optionflags=doctest.ELLIPSIS | flags)
    assert outcome.failed == 0
