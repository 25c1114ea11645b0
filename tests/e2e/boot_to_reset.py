"""A real node from boot to reset, told as a transcript: `make e2e`.

`tests/support/nspawn_node.py` has the node. docs/e2e.md is the transcript of a run.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import attrs
from support.needs import missing
from support.nspawn_node import API, CIDR, LOG, MACHINE, NspawnError, NspawnNode, write_disk


@attrs.frozen
class Step:
    """A sentence, and the commands after it, each with what it printed."""

    sentence: str
    commands: list[tuple[str, str]] = attrs.field(factory=list)


@attrs.frozen
class Story:
    """The steps that are done; each is printed at once if the story `is_loud`."""

    is_loud: bool = False
    steps: list[Step] = attrs.field(factory=list)

    def say(self, sentence: str) -> None:
        """Begin a step."""
        self.steps.append(Step(sentence))
        self._print(f"\n{sentence}\n\n")

    def show(self, node: NspawnNode, *commands: str) -> None:
        """Run commands on the node as root."""
        for command in commands:
            self._print(f"$ {command}\n")
            output = node.typed(command)
            self._print(output)
            self.steps[-1].commands.append((command, output))

    def _print(self, text: str) -> None:
        if self.is_loud:
            print(text, end="", flush=True)


def first_boot(story: Story, node: NspawnNode) -> None:
    """Show what a fabric does to a node without hostrouting, and how an agent fixes that."""
    story.say("The node boots and starts the machine kube1, whose kubelet reaches the API server.")
    story.show(node, f"systemctl --quiet enable --now machines.target {MACHINE}")
    node.wait_for_answer("ok")
    story.show(node, f"ip route get {API}", f"tail -n 1 {LOG}")

    node.wait_for_fabric()
    node.wait_for_answer("no answer")
    story.say(
        "Ten seconds after the boot, the fabric gives ib0 an address. Its /16 contains the "
        "cluster's network, so the kubelet's packets leave through ib0 and are lost."
    )
    story.show(node, "ip route show dev ib0", f"ip route get {API}", f"tail -n 1 {LOG}")

    story.say(
        "The bootstrap agent runs two tasks, `ConfigureStaticRoutes` and `CheckRouteOverlap`. Its "
        "config has no routes yet, so the check fails."
    )
    story.show(node, "cat two_tasks.py", "cat check.json")
    story.show(node, "python3 two_tasks.py check.json 2> /dev/null")

    story.say(
        "The agent runs `Configure`, which fails for the same reason, but installs a gate: in "
        "STRICT mode, the machine can't start any more while the node is misrouted."
    )
    story.show(node, "python3 bootstrap_agent.py check.json 2> /dev/null")
    story.show(node, f"systemctl restart {MACHINE}", f"systemctl is-active {MACHINE}")
    story.show(node, f"journalctl -o cat -u {MACHINE} | grep refused")
    story.show(node, "hostrouting status | head -n 2")

    story.say("With a route in the config, both tasks succeed, and the machine starts by itself.")
    story.show(node, "cat routes.json", "python3 two_tasks.py routes.json")
    node.wait_for_answer("ok")
    story.show(node, f"systemctl is-active {MACHINE}", f"ip route get {API}", f"tail -n 1 {LOG}")

    node.wait_for_request()
    story.say("The API server has requests from the node again.")
    story.show(node, "journalctl -o cat -u api -n 1")

    story.say("With `Configure`, the agent also enables the watch.")
    story.show(node, "cat watch.json", "python3 bootstrap_agent.py watch.json 2> /dev/null")
    story.show(node, "hostrouting status | head -n 1")


def second_boot(story: Story, node: NspawnNode) -> None:
    """Show what hostrouting does at a boot and when a route is lost, and how it is removed."""
    node.wait_for_answer("ok")
    story.say(
        "The node boots again. The route is there and the machine runs before the fabric connects."
    )
    story.show(node, "ip route show dev ib0", "ip route show proto 142")
    story.show(node, f"systemctl is-active {MACHINE}")

    node.wait_for_fabric()
    node.wait_for_request()
    story.say(
        "Ten seconds after the boot, the fabric gives ib0 its address again, but the kubelet's "
        "packets still leave through eth0."
    )
    story.show(node, "ip route show dev ib0", f"ip route get {API}", f"tail -n 1 {LOG}")
    story.show(node, "journalctl -o cat -u api -n 1")

    node.monitor_routes()
    story.say("A daemon deletes the route, and the watch restores it at once.")
    story.show(node, "systemctl start cleaner")
    node.until(f"grep --quiet ^{CIDR} /run/routes.log")
    node.wait_for_repair()
    story.show(
        node, "cat /run/routes.log", "journalctl -o cat -u hostrouting-watch | grep repaired"
    )
    node.wait_for_request()
    story.show(node, "journalctl -o cat -u api -n 1")

    story.say(
        "`hostrouting reset` removes everything. The machine goes on running, but its packets are "
        "lost again."
    )
    story.show(node, "hostrouting reset | tail -n 3", "hostrouting status | head -n 1")
    story.show(node, "ip route show proto 142", "ls /etc/aks-flex-node")
    node.wait_for_answer("no answer")
    story.show(node, f"systemctl is-active {MACHINE}", f"ip route get {API}", f"tail -n 1 {LOG}")


def tell(folder: Path, *, is_loud: bool = False) -> list[Step]:
    """Boot the node twice, with a disk in this folder, and return the steps."""
    story, disk = Story(is_loud), folder / "disk"
    write_disk(disk)
    with NspawnNode(disk) as node:
        node.try_nspawn()
        first_boot(story, node)
        node.save()
    with NspawnNode(disk) as node:
        second_boot(story, node)
    return story.steps


def main() -> None:
    """Print the transcript, or why this computer cannot run a machine."""
    if reason := missing("nspawn"):
        sys.exit(f"make e2e {reason}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            tell(Path(folder), is_loud=True)
        except NspawnError as error:
            sys.exit(f"make e2e needs a computer on which systemd-nspawn can run: {error}")
    print(f"\nAll of this took {time.monotonic() - began:.0f} seconds.")


if __name__ == "__main__":
    main()
