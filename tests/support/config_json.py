"""A config as JSON, with every field."""

from typing import Any

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
