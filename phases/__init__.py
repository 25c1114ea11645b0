"""Run tasks: one after the other or side by side, with deadlines, retries, a plan, an undo and a report.

    task.py         what a task is: Task, and what else it may be able to do: Plannable, Accountable, Undoable,
                    Tolerant; Change
    context.py      Context: may the task go on, and for how long
    compose.py      tasks out of tasks: Serial, Parallel, with_timeout, with_retry, tolerate; out of a function: task
    runner.py       execute, plan and undo a task; run a whole pipeline for a program's main
    report.py       Report: what a run did
    command.py      run_command: a subprocess that dies with its context
    mistakes.py     what is no task, and answers that nobody would hear: a TypeError that says what to write
    exceptions.py   the error tree
    testing.py      for your tests: tasks that record or fail, time that the test drives

Needs nothing but the standard library, and knows nothing of routing.
"""

from __future__ import annotations

from phases.change import Change
from phases.command import CommandResult, run_command
from phases.compose import Parallel, Serial, task, tolerate, with_retry, with_timeout
from phases.context import Clock, Context
from phases.exceptions import (
    CancelledError,
    CommandFailedError,
    DeadlineExceededError,
    PhaseError,
    TaskFailedError,
    UnknownTaskError,
)
from phases.report import Event, Report
from phases.runner import Plan, cancel_on_signals, execute, plan, run, undo
from phases.task import Group, Plannable, Task, Tolerant, Undoable

__all__ = [
    "CancelledError",
    "Change",
    "Clock",
    "CommandFailedError",
    "CommandResult",
    "Context",
    "DeadlineExceededError",
    "Event",
    "Group",
    "Parallel",
    "PhaseError",
    "Plan",
    "Plannable",
    "Report",
    "Serial",
    "Task",
    "TaskFailedError",
    "Tolerant",
    "Undoable",
    "UnknownTaskError",
    "cancel_on_signals",
    "execute",
    "plan",
    "run",
    "run_command",
    "task",
    "tolerate",
    "undo",
    "with_retry",
    "with_timeout",
]
