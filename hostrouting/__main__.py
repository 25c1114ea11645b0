"""The command as a process: `hostrouting`, and `python -m hostrouting`."""

from __future__ import annotations

import gc
import os
import sys

# Without `typing`: until `main` runs, Ctrl-C would end in a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command of this process's arguments, and end the process.

    The garbage collector never runs, not even at exit, because the process is short. That saves
    18 % of `hostrouting check`.
    """
    # Imported here because Ctrl-C prints a traceback until the handler is set.
    import signal

    # A caller that ignores the signal, such as nohup, wants the same here.
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    gc.disable()
    # Imported here for the same reason.
    from hostrouting import cli
    from hostrouting.node import output

    arguments = cli.parsed()
    try:
        # From here on a run may have to be undone before the process ends.
        signal.signal(signal.SIGINT, usual)
        status = cli.perform(arguments)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        _end()
    output.end_streams()
    gc.freeze()
    sys.exit(status)


def _end(*_: object) -> NoReturn:
    """End the process, which has changed nothing: an import could swallow an exception."""
    try:  # noqa: SIM105 (contextlib is an import, and may not be complete)
        os.write(2, b"hostrouting: interrupted\n")
    except OSError:
        pass
    # SIGINT is the usual end of a watch.
    os._exit(0 if "watch" in sys.argv else 130)


if __name__ == "__main__":
    main()
