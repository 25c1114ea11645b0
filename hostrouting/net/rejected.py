"""The error for a batch of route changes that the kernel refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from hostrouting.base.errors import PASSING, BackendError, Paragraph, lines_of
from hostrouting.base.values import LightValue
from hostrouting.net.routes import RouteChange


@attrs.frozen
class Refusal(LightValue):
    """One refused route change, its errno, and the kernel's message."""

    change: RouteChange
    errno: int
    reason: str

    def __str__(self) -> str:
        return f"{self.change}: {self.reason}"


class RouteRejectedError(BackendError):
    """The kernel refused at least one change of a batch, so none of the batch is in force.

    `refusals` lists every refused change. `rolled_back` is True if reading the routes back
    confirmed that they are as before; otherwise `left_behind` describes each difference. The text
    is made from these attributes when it is needed, so a caller may change them.
    """

    def __init__(
        self,
        refusals: list[Refusal],
        *,
        rolled_back: bool,
        left_behind: Iterable[str] = (),
    ) -> None:
        self.refusals = refusals
        self.rolled_back = rolled_back
        self.left_behind: list[str] = list(left_behind)
        changes = "change was" if len(refusals) == 1 else "changes were"
        super().__init__(
            f"{len(refusals)} route {changes} refused",
            errno=refusals[0].errno if refusals else None,
        )
        self.retryable = rolled_back and _are_passing(refusals)

    @property
    def paragraphs(self) -> tuple[Paragraph, ...]:
        """The refusals and the state of the routes."""
        refused = Paragraph(super().__str__(), tuple(map(str, self.refusals)))
        if self.rolled_back:
            text = "the routes are as before: the rollback was verified by reading them back"
            return refused, Paragraph(text)
        text = "THE ROLLBACK IS INCOMPLETE, these differ from before"
        return refused, Paragraph(text, tuple(self.left_behind))

    def __str__(self) -> str:
        return lines_of(self.paragraphs)


def _are_passing(refusals: Sequence[Refusal]) -> bool:
    return bool(refusals) and all(refusal.errno in PASSING for refusal in refusals)
