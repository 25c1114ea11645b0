"""nftables through `nft`, the one program that can translate its language for the kernel."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import attrs

from hostrouting.base.errors import BackendError, PermissionDeniedError, ToolNotFoundError
from hostrouting.host.packets import with_sbin
from phases import CommandFailedError, Context, run_command

if TYPE_CHECKING:
    from collections.abc import Sequence


#: The objects of `nft -j list`.
Listing = list[dict[str, Any]]

#: The most characters of nft's words that an error shows: the first mistake comes first.
_MOST_WORDS = 2000
#: nft reads its arguments as one line of its language, and would read any other character in a name
#: as more of it.
_FAMILY = re.compile(r"ip6?|inet|arp|bridge|netdev")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
#: nft's whole answer for an absent table; newer versions go on `; did you mean table ...`.
_NO_SUCH_TABLE = re.compile(
    r"^Error: (Could not process rule: )?No such file or directory", re.MULTILINE
)
_NO_PRIVILEGE = re.compile(r"Operation not permitted|you must be root", re.IGNORECASE)


@attrs.frozen
class NftCommand:
    """The nftables of the network namespace that `command` runs in.

    `command` is how to call nft, possibly through another program (`ip netns exec NAME nft`). It
    implements `Nftables`.
    """

    command: Sequence[str] = ("nft",)

    def table(self, ctx: Context, family: str, name: str) -> Listing | None:
        """See `Nftables.table`."""
        check_table_name(family, name)
        what = f"list the table {family} {name}"
        try:
            listing = self._run(ctx, "-j", "list", "table", family, name)
        except CommandFailedError as error:
            if error.status is not None and _NO_SUCH_TABLE.search(error.stderr):
                return None
            raise _translated(error, what) from error
        try:
            return _objects(listing, what)
        except BackendError:
            # As text, nft prints flags correctly.
            if not self._shows(ctx, f"table {family} {name} ", "list", "table", family, name):
                raise
        return [{"table": {"family": family, "name": name, "unreadable": True}}]

    def load(self, ctx: Context, ruleset: str) -> None:
        """See `Nftables.load`."""
        self._submit(ctx, ruleset, "load the ruleset")

    def check(self, ctx: Context, ruleset: str) -> None:
        """See `Nftables.check`."""
        # The kernel checks the ruleset as well, in a transaction that is dropped, so this needs
        # privilege.
        self._submit(ctx, ruleset, "accept the ruleset", "-c")

    def _submit(self, ctx: Context, ruleset: str, what: str, *options: str) -> None:
        try:
            self._run(ctx, *options, "-f", "-", text=ruleset)
        except CommandFailedError as error:
            report = _translated(error, what)
            # nft reports an owned table in the same words as missing privilege. Without privilege
            # it lists no tables, either.
            if isinstance(report, PermissionDeniedError) and self._shows(ctx, "", "list", "tables"):
                first, *_ = error.stderr.strip().splitlines()
                report = BackendError(
                    f"cannot {what}: another process owns the table, and only this process may "
                    "change it while it runs; "
                    f"`nft list ruleset` shows the table's `flags owner` and the process\n{first}"
                )
            raise report from error

    def _shows(self, ctx: Context, beginning: str, *arguments: str) -> bool:
        try:
            return self._run(ctx, *arguments).startswith(beginning)
        except CommandFailedError:
            return False

    def _run(self, ctx: Context, *arguments: str, text: str | None = None) -> str:
        return run_command(ctx, [*self.command, *arguments], input=text, env=with_sbin()).stdout


def check_table_name(family: str, name: str) -> None:
    """Raise `BackendError` unless nft would read these two as the name of one table.

    >>> check_table_name("ip6", "azureSLBProbe")
    >>> check_table_name("ip6", "a; flush ruleset")
    Traceback (most recent call last):
    hostrouting.base.errors.BackendError: 'ip6 a; flush ruleset' is not a table of nft: give a \
family, and a name that begins with a letter and has letters, digits and _ . / - only
    """
    if not _FAMILY.fullmatch(family) or not _NAME.fullmatch(name):
        raise BackendError(
            f"{f'{family} {name}'!r} is not a table of nft: "
            "give a family, and a name that begins with a letter and has letters, digits and "
            "_ . / - only"
        )


def normalised(value: Any) -> Any:
    """Return libnftables-json(5) without the parts that differ between readings or versions of nft.

    >>> rule = {"handle": 4, "expr": [{"counter": {"packets": 1, "bytes": 60}}, {"accept": None}]}
    >>> normalised({"rule": rule})
    {'rule': {'expr': [{'counter': None}, {'accept': None}]}}
    """
    if isinstance(value, list):
        return [normalised(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, part in value.items():
        shown = part
        if key == "counter" and isinstance(part, dict):
            # Only the name stays, of an object of the table or in a rule's reference to it.
            named = {name: item for name, item in part.items() if name not in {"packets", "bytes"}}
            shown = named or None
        elif key in {"table", "chain"} and isinstance(part, dict):
            # nft prints the comment of a table or chain only since 1.1; it has always printed those
            # of rules.
            shown = {name: item for name, item in part.items() if name != "comment"}
        elif key == "right" and isinstance(part, dict):
            # A comparison with a set of one equals a comparison with its element, which newer
            # releases print.
            elements = part.get("set")
            if isinstance(elements, list) and len(elements) == 1:
                [shown] = elements
        if key != "handle":
            kept[key] = normalised(shown)
    return kept


def _objects(listing: str, what: str) -> Listing:
    message = f"cannot {what}: nft printed no listing in JSON: {listing.strip()[:200]!r}"
    try:
        objects = [
            normalised(item) for item in json.loads(listing)["nftables"] if "metainfo" not in item
        ]
        # nft 1.0.6 prints uninitialised memory for the flags of a table, and often stops in the
        # middle of it.
        has_flags = any("flags" in item.get("table", ()) for item in objects)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BackendError(message) from error
    if has_flags:
        raise BackendError(message)
    # Before 1.0.6, nft prints each chain with its rules; since then all chains first. The sort is
    # stable.
    return sorted(objects, key=lambda item: "rule" in item)


def _translated(error: CommandFailedError, what: str) -> BackendError:
    if isinstance(error.__cause__, FileNotFoundError):
        return ToolNotFoundError("nft", package="nftables", purpose=f"to {what}")
    words = error.stderr.strip()[:_MOST_WORDS]
    if error.status is None or not words:
        return BackendError(f"cannot {what}: {error}")
    if _NO_PRIVILEGE.search(words):
        return PermissionDeniedError(
            f"cannot {what}: nft needs root or CAP_NET_ADMIN, even to read; are you root?\n{words}"
        )
    return BackendError(f"cannot {what}: nft failed (status {error.status})\n{words}")
