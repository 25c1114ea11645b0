"""Try a program under the conditions of a gate."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from hostrouting.base.commands import printable
from phases import CommandFailedError, Context, DeadlineExceededError, run_command

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The exit status of the program if it works.
_WORKS = 10
_SECONDS = 10.0
#: The environment of a unit, without that of the apply.
_UNIT: Final = ("env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
#: As in the drop-in of gates.
_GATE: Final = ("setpriv", "--bounding-set=-all,+net_admin")


class GateTrial:
    """It implements `ProgramTrial`."""

    def failure(self, ctx: Context, argv: Sequence[str]) -> str:
        """See `ProgramTrial.failure`."""
        # If setpriv is missing, another finding says so.
        gate = _GATE if shutil.which(_GATE[0]) else ()
        try:
            result = run_command(ctx.child(timeout=_SECONDS), [*_UNIT, *gate, *argv], check=False)
        except CommandFailedError as error:
            return printable(str(error))
        except DeadlineExceededError:
            ctx.check()
            return f"it did not exit within {_SECONDS:.0f} s"
        if result.status == _WORKS:
            return ""
        lines = (result.stderr or result.stdout).strip().splitlines()
        return printable(": ".join([f"it exited with {result.status}", *lines[-1:]]))
