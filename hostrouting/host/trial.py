"""A trial of a program under the conditions of a gate."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import printable
from phases import CommandFailedError, Context, DeadlineExceededError, run_command

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The exit status of a program that answers: right.
_RIGHT = 10
_SECONDS = 10.0
#: What systemd gives to a unit, and nothing of the environment of an apply.
_UNIT: Final = ("env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
#: As in the drop-in of gates.
_GATE: Final = ("setpriv", "--bounding-set=-all,+net_admin")


class GateTrial:
    """It implements `ProgramTrial`."""

    def failure(self, ctx: Context, argv: Sequence[str]) -> str:
        """See `ProgramTrial.failure`."""
        # A gate needs setpriv, and another finding says so.
        gate = _GATE if shutil.which(_GATE[0]) else ()
        try:
            result = run_command(ctx.child(timeout=_SECONDS), [*_UNIT, *gate, *argv], check=False)
        except CommandFailedError as error:
            return printable(str(error))
        except DeadlineExceededError:
            ctx.check()
            return f"it has not ended after {_SECONDS:.0f} s"
        if result.status == _RIGHT:
            return ""
        lines = (result.stderr or result.stdout).strip().splitlines()
        return printable(": ".join([f"it ended with {result.status}", *lines[-1:]]))
