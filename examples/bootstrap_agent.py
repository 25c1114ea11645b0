"""A bootstrap agent: it turns a VM into a node, with tasks of hostrouting among its own.

    python examples/bootstrap_agent.py            on a machine in memory
    python examples/bootstrap_agent.py CONFIG     on this machine (needs root)

The pipeline is plain data. `run` gives it a deadline, handles SIGTERM and reports every task. The
caller reaches every failure, at any depth of groups.
"""

from __future__ import annotations

import logging
import sys

from hostrouting import Configure, Host, HostRoutingConfig
from hostrouting.exceptions import ConfigError
from hostrouting.testing import FakeHost, MemoryBackend
from phases import (
    Context,
    Parallel,
    Serial,
    Task,
    TaskFailedError,
    run,
    task,
    with_retry,
    with_timeout,
)

EXAMPLE = {
    "hostRouting": {
        "staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22"}]},
        "routeOverlap": {"expectedCidrs": ["172.16.8.0/22"], "mode": "STRICT"},
        "gates": ["systemd-nspawn@.service"],
    },
    "kubelet": {"key": "of the agent"},
}


@task("load-kernel-modules")
def load_kernel_modules(ctx: Context) -> None:
    """Load modules: a task of the agent, which here does nothing."""
    ctx.check()


@task("download-kubelet")
def download_kubelet(ctx: Context) -> None:
    """Download: another task of the agent. It sleeps by its context, so it can be cancelled."""
    ctx.sleep(0.01)


@task("start-machine")
def start_machine(ctx: Context) -> None:
    """Start the machine, only after routing is right."""
    ctx.check()


def pipeline(config: HostRoutingConfig, host: Host) -> Task:
    """Return the whole bootstrap, in its order."""
    return Serial(
        Parallel(
            load_kernel_modules,
            with_retry(download_kubelet, attempts=3),
            name="prepare",
        ),
        with_timeout(Configure(config, host=host), 90),
        start_machine,
        name="bootstrap",
    )


def a_node_in_memory() -> Host:
    """Return a GPU node whose fabric has the addresses of the cluster."""
    routes = MemoryBackend()
    routes.add_link("eth0")
    routes.add_address("eth0", "10.224.0.4/16")
    routes.add_route("default", gateway="10.224.0.1", dev="eth0", protocol=16)
    routes.add_link("ib0")
    routes.add_address("ib0", "172.16.1.4/16")
    return FakeHost(routes)


def main(argv: list[str]) -> int:
    """Run the pipeline and return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        if argv:
            config = HostRoutingConfig.from_file(argv[0])
        else:
            config = HostRoutingConfig.from_mapping(EXAMPLE)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    host = Host.live() if argv else a_node_in_memory()
    report = run(pipeline(config, host), timeout=300, handle_signals=True)
    for part in report.walk():
        print(f"{part.status:9} {part.name}")
    if isinstance(report.error, TaskFailedError):
        for failure in report.error.walk():
            print(f"{failure.path}: {failure.cause}")
        print("a retry may help" if report.error.retryable else "an operator has to act")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
