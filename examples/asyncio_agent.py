"""An agent in asyncio: it runs a pipeline, follows it by its events, and cancels it.

    python examples/asyncio_agent.py

Tasks are plain functions that may block, so `run_async` does the work in a thread, and calls the
observer in that of the event loop. The agent cancels the context once the node waits for its peers;
the run then reverses its changes. The node is in memory: the example changes nothing on this
machine.
"""

from __future__ import annotations

import asyncio
import logging

from hostrouting import ConfigureStaticRoutes, Host, HostRoutingConfig
from hostrouting.testing import FakeHost, MemoryBackend
from phases import Context, Event, Report, Serial, Task, run_async, task

CONFIG = HostRoutingConfig.from_mapping(
    {"staticRoutes": {"enabled": True, "routes": [{"destination": "172.16.8.0/22", "dev": "eth0"}]}}
)


@task("wait-for-peers")
def wait_for_peers(ctx: Context) -> None:
    """Wait for peers that never come; the wait ends as soon as the context does."""
    ctx.sleep(3600)


def pipeline(host: Host) -> Task:
    """Return the work of the agent."""
    return Serial(ConfigureStaticRoutes(CONFIG, host=host), wait_for_peers, name="join")


async def follow(work: Task) -> Report:
    """Run the pipeline, print its events, and cancel it in its last task."""
    ctx = Context(timeout=300)

    def on_event(event: Event) -> None:
        print(f"{event.path}: {event.change or event.status}")
        if event.path == "join/wait-for-peers":
            ctx.cancel("the agent stops")

    return await run_async(work, ctx, undo_on_failure=True, observer=on_event)


def main() -> None:
    """Run the agent on a node in memory and print the report."""
    logging.getLogger("phases").addHandler(logging.NullHandler())
    routes = MemoryBackend()
    routes.add_link("eth0")
    routes.add_address("eth0", "10.224.0.4/16")
    routes.add_route("default", gateway="10.224.0.1", dev="eth0", protocol=16)
    report = asyncio.run(follow(pipeline(FakeHost(routes))))
    for part in report.walk():
        print(f"{part.status:9} {part.name}")
    print(report.error)


if __name__ == "__main__":
    main()
