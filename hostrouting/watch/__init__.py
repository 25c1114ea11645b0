"""Keep routing right after the boot: the task that repairs routes as events tell that they changed."""

from __future__ import annotations

from hostrouting.watch.task import Watch

__all__ = ["Watch"]
