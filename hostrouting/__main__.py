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

    Its garbage ends with it, so the cycle collector never runs, not even over all modules at the
    end: that saves 18 % of `hostrouting check`.
    """
    # Imported late: until its handler is there, Ctrl-C would print a traceback.
    import signal

    # A caller that ignores the signal, such as nohup, wants the same here.
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    gc.disable()
    # Imported late: until its handler is there, Ctrl-C would print a traceback.
    from hostrouting import cli
    from hostrouting.node import output

    arguments = cli.parsed()
    try:
        # An undo may have to end first.
        signal.signal(signal.SIGINT, usual)
        status = cli.perform(arguments)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        _end()
    output.end_streams()
    gc.freeze()
    sys.exit(status)


def _end(*_: object) -> NoReturn:
    """End the process, which has changed nothing: an exception could be lost within an import."""
    try:  # noqa: SIM105 (contextlib is an import, and may not be complete)
        os.write(2, b"hostrouting: interrupted\n")
    except OSError:
        pass
    # SIGINT is the usual end of a watch.
    os._exit(0 if "watch" in sys.argv else 130)


if __name__ == "__main__":
    main()
