"""Keep routing right after the boot.

Watch             the task that repairs routes as events tell that they changed
ConfigureWatch    the unit that runs it, or the timer that runs the scripts of the boot again
"""

from __future__ import annotations

from hostrouting.watch.task import Watch
from hostrouting.watch.unit import ConfigureWatch

__all__ = ["ConfigureWatch", "Watch"]
