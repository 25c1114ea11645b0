"""`hostrouting sweep`: the stale objects of azure-vnet removed."""

from __future__ import annotations

from functools import partial

from hostrouting.azure.stale_cni.swept import run_sweep
from hostrouting.cli.command import INSTALLED, Command, switch
from hostrouting.cli.shared import run_optional

COMMAND = Command(
    run=partial(run_optional, run_sweep),
    summary="remove the stale objects of azure-vnet; `reset` restores them",
    position=30,
    config=INSTALLED,
    options={
        "--dry-run": switch("only show the objects that a sweep would remove"),
        "--exit-code": switch("with --dry-run: exit with 4 if there is something to sweep"),
    },
    changes=True,
)
