"""The answers of the kernel to changes that it refused, and answers that were lost."""

from __future__ import annotations

from typing import NamedTuple


class Failure(NamedTuple):
    """The kernel's answer to one step that it refused."""

    errno: int
    reason: str


#: Refusals by the step's number, or by the change's position.
Failures = dict[int, Failure]


class AnswersLostError(Exception):
    """Some answers did not arrive: only reading back shows which steps succeeded.

    Its cause, if any, is the error of the socket.
    """

    def explain(self, failures: Failures) -> Failures:
        """Return the failures of a reading with the error of the socket as their reason."""
        cause = self.__cause__
        if not isinstance(cause, OSError):
            return failures
        return {
            position: Failure(cause.errno or failure.errno, f"{cause.strerror}; {failure.reason}")
            for position, failure in failures.items()
        }
