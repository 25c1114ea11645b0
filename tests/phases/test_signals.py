"""Signals, each in a process of its own: the program, and what it prints."""

import subprocess
import sys
import textwrap
import threading

import pytest

from phases import Context
from phases.hosting import cancel_on_signals

PROGRAMS = {
    # SIGINT and SIGTERM end the run, and the earlier handlers are restored.
    "cancel": (
        """
        for number in signal.SIGINT, signal.SIGTERM:
            before = signal.getsignal(number)
            def do(ctx):
                os.kill(os.getpid(), number)
                ctx.sleep(3600)
            report = run(Parallel(task("a")(do), name="all"), handle_signals=True)
            print(report.status, report.error, signal.getsignal(number) is before)
            run(task("quick")(lambda ctx: None), handle_signals=True)
            print(signal.getsignal(number) is before)
        """,
        "cancelled cancelled: SIGINT True\nTrue\ncancelled cancelled: SIGTERM True\nTrue\n",
    ),
    # A second signal raises KeyboardInterrupt, even in a task that ignores its context.
    "second": (
        """
        def do(ctx):
            os.kill(os.getpid(), signal.SIGINT)
            print(reason_of(ctx))
            os.kill(os.getpid(), signal.SIGINT)
        try:
            run(task("a")(do), handle_signals=True)
        except KeyboardInterrupt:
            print("KeyboardInterrupt")
        """,
        "SIGINT\nKeyboardInterrupt\n",
    ),
    # The second of several signals calls the given handler.
    "handler": (
        """
        numbers = signal.SIGQUIT, signal.SIGTERM
        before = [signal.getsignal(each) for each in numbers]
        try:
            with cancel_on_signals(Context(), signals=numbers, second=signal.default_int_handler) as ctx:
                os.kill(os.getpid(), signal.SIGTERM)
                print(reason_of(ctx))
                os.kill(os.getpid(), signal.SIGQUIT)
        except KeyboardInterrupt:
            print("KeyboardInterrupt", before == [signal.getsignal(each) for each in numbers])
        """,
        "SIGTERM\nKeyboardInterrupt True\n",
    ),
    # Ctrl-C without handle_signals cancels the threads, waits for them, undoes, and is raised.
    "parallel": (
        """
        def do(ctx):
            try:
                os.kill(os.getpid(), signal.SIGINT)
                ctx.sleep(3600)
            finally:
                print(reason_of(ctx))
        a = task("a", undo=lambda ctx: print("undo a"))(lambda ctx: None)
        try:
            run(Serial(a, Parallel(task("b")(do))), undo_on_failure=True)
        except KeyboardInterrupt as interrupt:
            print(interrupt.report.status)
        """,
        "KeyboardInterrupt\nundo a\ncancelled\n",
    ),
    # A signal that the kernel gives to another thread cancels the run, too.
    "thread": (
        """
        import threading, time
        code = Context().clock.wait.__code__
        last_line = max(line for _, _, line in code.co_lines() if line)
        main = threading.get_ident()
        def do(ctx):
            while not ((frame := sys._current_frames()[main]).f_code is code and frame.f_lineno == last_line):
                time.sleep(0.001)
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            ctx.sleep(3600)
        print(run(Parallel(task("a")(do)), handle_signals=True).error)
        """,
        "cancelled: SIGTERM\n",
    ),
    # A signal ends an interruptible block in the midst of its work, and before it; not that of a
    # shielded context, of another thread, or of the parent of what was cancelled.
    "interruptible": (
        """
        import threading
        with cancel_on_signals(Context()) as ctx:
            def elsewhere():
                with interruptible(ctx):
                    inside.set()
                    done.wait()
                print("thread: ended by itself")
            inside, done = threading.Event(), threading.Event()
            thread = threading.Thread(target=elsewhere)
            thread.start()
            inside.wait()
            try:
                with interruptible(ctx.child(timeout=3600)):
                    with interruptible(ctx.shielded()):
                        print("shielded: begun")
                    os.kill(os.getpid(), signal.SIGTERM)
                    while True:
                        pass
            except CancelledError as error:
                print(error)
            done.set()
            thread.join()
            try:
                with interruptible(ctx):
                    print("begun although it is over")
            except CancelledError as error:
                print(error)
        with cancel_on_signals(Context()) as ctx:
            with interruptible(ctx.shielded()):
                os.kill(os.getpid(), signal.SIGTERM)
            print("shielded: ended by itself")
        class Signalled(Context):
            def check(self):
                super().check()
                os.kill(os.getpid(), signal.SIGTERM)
        with cancel_on_signals(Signalled()) as ctx:
            try:
                with interruptible(ctx):
                    print("begun")
            except CancelledError as error:
                print(error)
        parent = Context()
        with interruptible(parent), cancel_on_signals(parent.child()) as child:
            os.kill(os.getpid(), signal.SIGTERM)
            print(reason_of(child), reason_of(parent))
        """,
        (
            "shielded: begun\ncancelled: SIGTERM\nthread: ended by itself\ncancelled: SIGTERM\n"
            "shielded: ended by itself\ncancelled: SIGTERM\nSIGTERM None\n"
        ),
    ),
}


@pytest.mark.parametrize(("code", "printed"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_that_gets_signals(code: str, printed: str) -> None:
    """A program prints what its comment promises."""
    start = "import os, signal, sys\nfrom phases import *\nfrom phases.hosting import cancel_on_signals, interruptible, reason_of\n"
    # In the background of a shell, processes inherit an ignored SIGINT.
    start += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    argv = [sys.executable, "-c", start + textwrap.dedent(code)]
    done = subprocess.run(argv, cwd="/", check=False, capture_output=True, text=True, timeout=60)
    assert (done.stdout, "Traceback" in done.stderr) == (printed, False)


def test_a_context_that_signals_cancel_is_made_in_the_with() -> None:
    """`with cancel_on_signals(Context()) as ctx` binds it, in the main thread and in others."""
    ctx, seen = Context(), []

    def enter() -> None:
        with cancel_on_signals(ctx) as same:
            seen.append(same)

    enter()
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [ctx, ctx]
