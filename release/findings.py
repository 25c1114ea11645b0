"""The findings of `hostrouting check` for the manual: kind, severity, meaning and remedy.

A test compares the kinds with those that the code constructs.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Kind(NamedTuple):
    """A row of the table."""

    name: str
    severity: str
    meaning: str
    remedy: str


_ROUTES: Final = "`hostrouting check --fix` writes the config with the routes that help"
_APPLY: Final = "`hostrouting apply` the config"

#: Of the check, in `cidrs` of the JSON. They are errors under STRICT, and warnings under WARN.
OF_THE_PROOF: Final = (
    Kind(
        "overlap",
        "by mode",
        "expected addresses leave through another device",
        f"{_ROUTES}; a device that reaches the cluster, of a CNI that is not well-known, is to be "
        "named in `allowedDevs`",
    ),
    Kind(
        "announced",
        "by mode",
        "expected addresses will leave through a fabric that is not connected yet",
        f"{_ROUTES}, at once",
    ),
    Kind(
        "no-route",
        "by mode",
        "no route leads to expected addresses",
        "give the node a default route: see the log of its DHCP client",
    ),
    Kind(
        "blocked",
        "by mode",
        "a blackhole, unreachable or prohibit route takes them",
        "remove that route at its owner, which the line names; no route hides a blackhole",
    ),
    Kind(
        "local",
        "by mode",
        "the node itself has the address, on another device",
        "name narrower `expectedCidrs`, or run the `ip address del` of its line, if it has one",
    ),
    Kind(
        "dead-end",
        "by mode",
        "the expected device lacks a carrier",
        "see `ip link show` and its cable or driver",
    ),
    Kind(
        "unknown-exit",
        "by mode",
        "neither a default route nor the config names the device through which they should leave",
        "name it in `expectedDevs`",
    ),
    Kind(
        "undecided",
        "by mode",
        "the route adds a header (`encap`), which may lead anywhere: seg6, mpls, a tunnel",
        "lead them by a route without `encap`, or by a tunnel's own device in `allowedDevs`",
    ),
)

#: All others, in `findings` of the JSON.
OF_THE_NODE: Final = (
    # The config, and its files.
    Kind(
        "not-applied",
        "warning; error of an image or a record",
        "nothing of the config is installed, or its copy is damaged",
        _APPLY,
    ),
    Kind(
        "boot-file", "error", "a script, unit or gate on the disk is not that of the config", _APPLY
    ),
    Kind(
        "foreign-file",
        "error; note if the config does not need it away",
        "another owner has a file where hostrouting installs one: a mere namesake",
        "move it away or rename it; hostrouting leaves it alone",
    ),
    Kind(
        "exposed",
        "error",
        "users other than root may change what root runs or believes",
        "`chown` the file or folder that it names to root, and `chmod go-w` it",
    ),
    Kind(
        "nothing-proven",
        "warning",
        "`routeOverlap` names no addresses",
        "give `expectedCidrs` or `expected`, or drop it",
    ),
    Kind(
        "local-network",
        "warning",
        "the installed config expects or lists a network inside 127.0.0.0/8; a new one is refused",
        "remove it, and apply the config",
    ),
    Kind(
        "allows-all",
        "warning",
        "a pattern of `allowedDevs` allows every device",
        "name the devices that are meant",
    ),
    Kind(
        "late-unit",
        "error; warning under WARN",
        "a unit of `after` is neither active nor successfully finished since the boot",
        "see `systemctl status` of it; once it is up, held units start by themselves",
    ),
    Kind(
        "spared-unit",
        "warning",
        "a unit of `after` is unknown, masked or skipped by its condition, and holds nothing",
        "correct `after`, or install or unmask the unit",
    ),
    Kind(
        "failed-unit",
        "error; warning if optional",
        "the last run of a unit of hostrouting failed, or its watch does not run",
        "see `journalctl -b -u` of it",
    ),
    Kind(
        "no-program",
        "error; warning if optional",
        "a node or image lacks a program of its boot, or its Python is of no use there",
        "install the package that it names",
    ),
    Kind(
        "watch",
        "warning; note",
        "routing may not stay right, or a setting of `watch` is ignored",
        _APPLY,
    ),
    Kind(
        "not-watched",
        "note",
        "nothing looks at routing until a gated unit starts: a marker may outlive the truth",
        "enable `watch`",
    ),
    Kind(
        "node-ip",
        "note",
        "the kubelet's `--node-ip` is on another device than the exit of its family",
        "give an address of the exit, or choose the other exit",
    ),
    # What stands in the way.
    Kind(
        "device-down",
        "warning",
        "the device through which addresses should leave is set down, and they are wrong",
        "`ip link set` it `up`",
    ),
    Kind(
        "no-device",
        "warning",
        "the node has no device of a name in `expectedDevs`, and addresses are wrong",
        "name the right device, or see the driver",
    ),
    Kind(
        "enslaved",
        "warning",
        "the device through which addresses should leave is a port of a bridge or bond, which "
        "takes its packets",
        "take it out, or give the address and the default route to the bridge or bond",
    ),
    Kind(
        "no-carrier",
        "warning",
        "the device through which addresses should leave has no carrier",
        "see its cable, the port of its switch and its driver",
    ),
    Kind(
        "unmanaged",
        "warning",
        "no program manages the device that has no address, or no default route",
        "let its manager manage it: the finding has the setting",
    ),
    Kind(
        "lost-default",
        "warning",
        "the device through which addresses should leave has no address, or no default route",
        "the command of its manager (networkd, netplan, NetworkManager, ifupdown), then "
        "`hostrouting apply`",
    ),
    Kind(
        "no-lock",
        "warning",
        "an apply is needed, and a folder is in the place of its lock",
        "move the folder away",
    ),
    Kind(
        "read-only",
        "warning",
        "an apply is needed, and where it writes is read-only",
        "mount it with `remount,rw`",
    ),
    Kind(
        "no-room",
        "warning",
        "an apply is needed, and where it writes is full; in `/run` it takes 16 MB",
        "make room",
    ),
    Kind(
        "under-way",
        "note",
        "another run of hostrouting changes the node just now, and errors may pass",
        "`hostrouting status --wait 60`",
    ),
    # Routes.
    Kind(
        "lost-rule",
        "warning",
        "a rule that the kernel makes for the table local or main is gone",
        "`ip rule add` as the finding names it",
    ),
    Kind(
        "lost-route",
        "error",
        "a static route is missing, is another one, or does not belong to this config",
        _APPLY,
    ),
    Kind(
        "hides-connected",
        "warning",
        "a route of hostrouting comes before the kernel's own of a device",
        "configure narrower destinations",
    ),
    Kind(
        "networkd",
        "warning; note with `watch`",
        "systemd-networkd will remove these routes when it starts or reconfigures the device",
        "set `watch.keepForeignRoutes`",
    ),
    Kind(
        "worse",
        "error",
        "of a planned config: an address that leaves right would leave wrong",
        "change the config; `apply --force` goes on",
    ),
    # Routing that is right only under conditions.
    Kind(
        "several-exits",
        "warning",
        "several IPv4 default routes decide alike, or several devices are in an expected network",
        "name the right devices in `expectedDevs`",
    ),
    Kind(
        "chosen-exit",
        "note",
        "of IPv4 default routes by several devices one decides by its metric, and nothing names it",
        "name the right device in `expectedDevs`, or set the metric at the owner that it names",
    ),
    Kind(
        "open-exit",
        "warning",
        "of an image, or a node made of it, under STRICT: nothing names the device through which "
        "it leaves",
        "name the network of the device in `expectedDevs`",
    ),
    Kind(
        "fallback-by-fabric",
        "warning",
        "a learned default route through a wrong device is used once the better gateway fails",
        "remove it at its source, or give it a lower router preference",
    ),
    Kind(
        "silent-gateway",
        "warning",
        "a gateway does not answer",
        "see the router, and the link to it",
    ),
    Kind(
        "foreign-source",
        "warning",
        "the node sends from an address of another device",
        "give the device an address",
    ),
    Kind(
        "will-vanish",
        "warning",
        "the kernel deletes a learned IPv6 route as soon as a program switches on forwarding",
        "set `accept_ra` of its device to 2",
    ),
    Kind(
        "idle-device",
        "note",
        "an allowed device carries expected addresses, and leads nowhere",
        "remove it, if it is left over",
    ),
    Kind(
        "policy-rule",
        "note",
        "packets that a rule selects by more than addresses would leave through a wrong device",
        "correct the rule, if that is not meant",
    ),
    Kind(
        "fabric",
        "note; warning if awaited",
        "why no fabric is announced, although the node has the cloud's agent",
        "none, unless a fabric is expected",
    ),
    # Gates.
    Kind(
        "held",
        "error; note while it starts",
        "a unit waits until routing is right",
        "repair the routing: it starts by itself",
    ),
    Kind(
        "gate-down",
        "warning",
        "a gated unit is down or masked although the node wants it, and is not held",
        "`systemctl start` it, or `systemctl unmask` it first",
    ),
    Kind(
        "gate-failed",
        "warning",
        "a gated unit has failed, or fails again and again, although its gate lets it start",
        "see `journalctl -b -u` of it",
    ),
    Kind(
        "failed-trigger",
        "warning",
        "a socket or path unit has failed, because the unit that it starts was refused too often",
        "start it again once routing is healthy",
    ),
    Kind(
        "gate-open",
        "error",
        "a later drop-in empties the gate of a unit",
        "remove its line, see `systemctl cat` of the unit",
    ),
    Kind(
        "gate-missing",
        "warning",
        "a unit in `gates` does not exist",
        "correct its name, or take it out of `gates`",
    ),
    Kind(
        "ungated-agent",
        "warning",
        "under STRICT, an enabled or active agent (kubelet, K3s, RKE2, ...) is none of `gates`",
        "write the `gates` that it names; `[]` means that nothing is to wait",
    ),
    Kind(
        "gate-masked",
        "note",
        "a gated unit is masked, so it never starts",
        "`systemctl unmask` it, or take it out",
    ),
    Kind(
        "gate-new",
        "note",
        "a gated unit runs that started before its gate",
        "none: its next start runs the gate",
    ),
    Kind(
        "gate-root",
        "error",
        "a gate cannot run its command in the unit's root folder",
        "take the unit out of `gates`",
    ),
    Kind(
        "gate-action",
        "error; `OnFailure=` of an installed gate: warning",
        "a refused start would take the node down (`FailureAction=`, `OnFailure=`)",
        "take the unit out of `gates`",
    ),
    Kind(
        "gate-manual",
        "error; warning of an installed gate",
        "a unit that only others may start (`RefuseManualStart=`) stays down once it is refused",
        "take that setting out, or the unit out of `gates`",
    ),
    Kind(
        "gate-success",
        "error",
        "a refused start would be a success (`SuccessExitStatus=`)",
        "take that status out",
    ),
    Kind(
        "gate-timeout",
        "error; warning of an installed gate",
        "the start timeout of a unit is shorter than a look at the routing beside an apply",
        "give it more",
    ),
    Kind(
        "gate-job-timeout",
        "warning",
        "systemd may give up the start of a unit while it waits for routing (`JobTimeoutSec=`)",
        "give it 60 s or more",
    ),
    Kind(
        "disabled",
        "warning",
        "break-glass is set: every gate is open",
        "remove the file that it names",
    ),
    # Optional features.
    Kind(
        "probe-snat",
        "error; warning if optional",
        "the rules for IPv6 probes are missing, or have changed",
        _APPLY,
    ),
    Kind(
        "stale-cni",
        "error; warning if optional",
        "an object of the removed CNI is stale",
        "`hostrouting sweep`",
    ),
)
