"""Configs as JSON: one with every field, values for a search, and the places of a document."""

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

#: The whole wire form, every field away from its default.
FULL: dict[str, Any] = {
    "staticRoutes": {
        "enabled": True,
        "routes": [
            {"destination": "172.16.1.0/24", "gateway": "10.224.0.1", "dev": "eth0", "metric": 100},
            {"destination": "172.16.2.0/24"},
        ],
    },
    "routeOverlap": {
        "expectedCidrs": ["172.16.0.0/16"],
        "expected": ["azure"],
        "mode": "STRICT",
        "allowedDevs": ["mesh*"],
        "expectedDevs": ["eth0", "10.224.0.0/16"],
        "fabric": ["172.16.0.0/16"],
    },
    "probeSnat": {
        "enabled": True,
        "dev": "eth0",
        "source": "fe80::1",
        "address": "2001:db8::1",
        "detect": "address",
        "required": True,
    },
    "staleCni": {
        "enabled": True,
        "podCidrs": ["10.240.0.0/16", "fd00::/64"],
        "bridge": "azure1",
        "backupDir": "/var/backups",
        "required": True,
        "sweep": "clean",
    },
    "watch": {
        "enabled": True,
        "mode": "service",
        "interval": "90s",
        "readings": 3,
        "keepForeignRoutes": True,
    },
    "gates": ["kubelet.service"],
    "after": ["ib_rdma_configure.service"],
    "foundDevs": ["eth0"],
}


def names_in(value: Any) -> set[str]:
    """Return every key of a document."""
    if isinstance(value, list):
        return {name for item in value for name in names_in(item)}
    if isinstance(value, dict):
        return {name for key, item in value.items() for name in (key, *names_in(item))}
    return set()


KEYS = st.sampled_from(sorted({"hostRouting", *names_in(FULL)}))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(
        [
            "",
            "10.0.0.0/8",
            "10.0.0.1",
            "eth0",
            "STRICT",
            "azure",
            "off",
            "60s",
            "a.service",
            "fe80::1",
            "/x",
            "\ud800",
        ]
    )
)
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(), inner, max_size=5)
    ),
    max_leaves=25,
)


def places(value: Any, path: str = "") -> Iterator[tuple[Any, Any, str]]:
    steps: list[tuple[Any, str]] = (
        [(key, f"{path}.{key}") for key in value]
        if isinstance(value, dict)
        else [(index, f"{path}[{index}]") for index in range(len(value))]
    )
    for key, below in steps:
        yield value, key, below
        if isinstance(value[key], dict | list):
            yield from places(value[key], below)
