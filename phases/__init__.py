"""Run tasks, in order or in parallel, with deadlines, retries, a plan, an undo and a report.

    task.py         the protocols of a task: Task, Plannable, Undoable, Tolerant, Group
    context.py      Context: time, cancellation, and `record`, by which a task records each Change
    compose.py      tasks of tasks: Serial, Parallel, with_timeout, with_retry, tolerate; task
    runner.py       execute, plan and undo a task; run a whole pipeline
    transaction.py  Transaction: changes that are kept until a commit, or rolled back
    report.py       Report and Event: the result of a run, and its steps for an observer
    step.py         the account that writes a report while the tasks run
    plain.py        the results of tasks as JSON holds them
    hosting.py      for the runner and for libraries: what agents do not need of a context
    asynchronous.py run_async: a pipeline in a thread of its own, for asyncio
    progress.py     print_progress: an observer for terminals
    command.py      run_command: a subprocess that ends with its context
    mistakes.py     TypeErrors for common mistakes, with the correct form
    exceptions.py   the error tree
    testing.py      for your tests: a clock that the test moves

Needs only the standard library, and contains nothing about routing.
"""

from __future__ import annotations

from phases.asynchronous import run_async
from phases.command import CommandResult, run_command
from phases.compose import Parallel, Serial, task, tolerate, with_retry, with_timeout
from phases.context import Change, Context
from phases.exceptions import (
    CancelledError,
    CommandFailedError,
    DeadlineExceededError,
    PhaseError,
    TaskFailedError,
    UnknownTaskError,
)
from phases.progress import print_progress
from phases.report import Event, Report, Status
from phases.runner import Plan, execute, plan, run, undo
from phases.task import Plannable, Task, Undoable
from phases.transaction import Transaction

__all__ = [
    "CancelledError",
    "Change",
    "CommandFailedError",
    "CommandResult",
    "Context",
    "DeadlineExceededError",
    "Event",
    "Parallel",
    "PhaseError",
    "Plan",
    "Plannable",
    "Report",
    "Serial",
    "Status",
    "Task",
    "TaskFailedError",
    "Transaction",
    "Undoable",
    "UnknownTaskError",
    "execute",
    "plan",
    "print_progress",
    "run",
    "run_async",
    "run_command",
    "task",
    "tolerate",
    "undo",
    "with_retry",
    "with_timeout",
]
