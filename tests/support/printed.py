"""The printed words about where addresses leave and what to do next: these, and golden files.

Other tests assert kinds, severities and values; where they compare a line, its words come from
here.
"""

from hostrouting.boot.intent import NOT_INSTALLED

#: The error of a command that means the installed config, where nothing is installed.
WITHOUT_CONFIG = (
    f"{NOT_INSTALLED}; run, with your config: hostrouting plan CONFIG; hostrouting apply CONFIG "
    "(hostrouting init --cidr CIDR begins one)"
)
#: What `watch` logs when the last finding is over.
LEAVE_AGAIN = "the expected addresses leave as they should again: "
#: The last line of `status` on a right node.
NOTHING_NEXT = "next: nothing to do"


def leaves(cidrs: str, *devs: str) -> str:
    """Return the verdict that addresses, or several CIDRs with a comma between, leave by devices."""
    verb = "leave" if "," in cidrs else "leaves"
    return f"{cidrs} {verb} by {', '.join(devs)}"


def overlap(addresses: str, dev: str, *, among: str = "", route: str) -> str:
    """Return the sentence of an overlap; `among` are the devices of which `dev` is one."""
    choice = f", one of {among}" if among else ""
    return f"{addresses}: leaves by {dev}{choice} ({route})"


def no_gateway(dev: str) -> str:
    """Return why a route by a device without default route cannot be completed."""
    return f"no IPv4 default route leaves by {dev}, so it has no gateway there"


def next_step(step: str) -> str:
    """Return the last line of an output: what to do next."""
    return f"next: {step}"
