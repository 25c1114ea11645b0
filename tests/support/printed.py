"""The printed words that tests of several files compare: these, and golden files.

Other tests assert kinds, severities and values. Who rewords a message changes it in the code, and
here or in the one test that has it.
"""

from hostrouting.boot.installed_config import NOT_INSTALLED

#: The error of a command that means the installed config, where nothing is installed.
WITHOUT_CONFIG = (
    f"{NOT_INSTALLED}; run, with your config: hostrouting plan CONFIG; hostrouting apply CONFIG "
    "(hostrouting init --cidr CIDR writes one to start from)"
)
#: What `watch` logs when the last finding is over.
LEAVE_AGAIN = "the expected addresses are routed correctly again: "

ALIKE = "have the same priority, so packets may leave through any of them: "
ANOTHER_FAMILY = "source: is of another family"
ANOTHER_FILE = "give the path of another file"
ANOTHER_RUN = "another run of hostrouting (process "
ASKED_AGAIN = (
    "does not answer, although the kernel has just asked again: check the router and the link to it"
)
AS_BEFORE = "this config is installed for the next boot, and the routes are as before"
BEFORE_THE_PIPE = "see the message of the command before the pipe, or give the path of a config"
CHOOSE_DEV = "choose the device that receives probes with hostRouting.probeSnat.dev"
CHOSEN = "has a lower metric than that through "
CORRECT_GATEWAY = "correct its 'gateway' or 'dev'"
DEFAULT_THROUGH = "the IPv4 default route through "
DRIFTED = "replaced, because it had changed"
EMPTIED = "is in a directory that is empty after a boot; "
FOLDER = "Is a directory; move this folder away"
GIVE_ROUTER = "give that of the router"
HELPFUL_ROUTES = "for the routes that help: hostrouting check"
IF_RIGHT = 'if that is right, add "expectedDevs": '
INCOMPLETE = "no default route completes it"
INSTALL_THERE = "is missing; install hostrouting there"
IN_FORCE = "1 of 1 routes in force"
IN_USE = "azure-vnet is still in use"
KEPT_NOWHERE = "nothing is kept at the next boot; to remove the routes, run: hostrouting reset"
LACKING_TOOL = "but not installed"
LEFT_BY_THE_RUN = "these stay as the run left them: "
LEFT_FILES = ", but a run has left "
LOOP = "Too many levels of symbolic links; remove this link"
MASKED = "an administrator has masked it"
MAY_CHANGE = "users other than root may change "
NARROW = "remove it from its device, or narrow expectedCidrs."
NARROWER = "Only narrower expectedCidrs are safe, with addresses that only the cluster uses"
NEVER_OVERWRITTEN = (
    "has the same destination and metric and is never hidden; configure narrower destinations"
)
NONE_HELD = "no gate held"
NOTHING_CHANGED = "nothing was changed; correct the config"
NOTHING_LEADS = "no route leads to "
NOT_APPLIED = "nothing of this config is installed"
NOT_CLOSED = "the writer did not close it within "
NOT_ENDED = "neither active nor successfully finished since the boot"
NOT_EXECUTABLE = "is not executable; run: chmod +x "
NOT_IN_FORCE = "is not in force"
NOT_IN_TIME = " and did not end in time; "
NOT_LOADED = "is not loaded"
NOT_REPAIRED = "the routes cannot be repaired now: "
NOT_ROLLED_BACK = "THE ROLLBACK IS INCOMPLETE, these differ from before"
NO_DESCRIPTION = "the cloud's description of the network interfaces cannot be read: "
NO_DEVICE = "there is no such device"
NO_DEVICE_NAME = "is not a device name: "
NO_DEVICE_OF = "with a default route and an address in 10.224.0.0/16 (a bridge or another virtual device must be given by its name)"
NO_FABRIC = "no fabric is announced: "
NO_GROUP = "the model does not know the group of "
NO_INDEX = "no device has the index "
NO_IPV4_ADDRESS = "is not an IPv4 address such as '10.224.0.1'"
NO_IPV6_ADDRESS = "this node has no IPv6: eth0 has no global address"
NO_IPV6_DEFAULT = "there is no IPv6 default route"
NO_POOL_YET = " does not exist yet"
ONCE_ADDED = "once each route can be added, "
ONE_LINE = "a record is one line, as `record` prints it"
OVER = "this is over: "
OWN_ADDRESS = "The node's own addresses take precedence over routes: "
REFUSED_THEN = "apply would refuse this"
RELOADED = "~ systemd (it has not read all unit files: daemon-reload)"
REPLACE_IT = "or replace it with your own: hostrouting apply CONFIG"
ROUTING_UNKNOWN = "starts although routing could not be checked"
SECOND_SIGNAL = "a second signal ended the run, or its undo"
SEE_DHCP = "see the log of its DHCP client, or its network configuration"
SEE_ROUTER = "find out why no router advertises itself, or set hostRouting.probeSnat.dev"
STARTS_NOT = "and no longer starts "
START_AGAIN = "start it again once routing is healthy"
STAY_SHUT = "a boot would find the gates shut, and they stay shut"
STRICT_HOLDS = "gates that STRICT holds then: "
TOO_LARGE = "it is larger than 1 MiB"
TWO_IPV6_EXITS = "IPv6 default routes leave through eth0, eth1"
UNDONE = "undone: the earlier config is in force, live and for the next boot"
UNDO_ENDED = "the undo was ended; up to "
UNKNOWN_EXIT = "and the config names no expectedDevs, so it is unknown where"
UNKNOWN_STATE = "the state of the node is unknown: "
UNSEEN = "is in a directory hidden from the service (PrivateTmp=yes); "
UNTIL_REMOVED = "until this route is removed"
UNTIL_THE_BOOT = "warning: no config is installed; 1 route is in force until the next boot"
WAITING = "waiting up to 30 s: "
WITHOUT_IT = "so routing is checked without it"
WOULD_LOSE = "refused, because this config would misroute addresses that are routed correctly now:"


def leaves(cidrs: str, *devs: str) -> str:
    """Return the verdict that addresses, or several CIDRs with a comma between, leave through devices."""
    verb = "leave" if "," in cidrs else "leaves"
    return f"{cidrs} {verb} through {', '.join(devs)}"


def overlap(addresses: str, dev: str, *, among: str = "", route: str) -> str:
    """Return the sentence of an overlap; `among` are the devices of which `dev` is one."""
    choice = f", one of {among}" if among else ""
    return f"{addresses}: leaves through {dev}{choice} ({route})"


def next_step(step: str) -> str:
    """Return the last line of an output: what to do next."""
    return f"next: {step}"
