"""Keep routing right after the boot.

Watch             the task that repairs routes as events tell that they changed
ConfigureWatch    the unit that runs it, or the timer that runs the scripts of the boot again
LivingClock       the clock of a process whose manager waits for signs of life
"""

from __future__ import annotations

from hostrouting.watch.signs import LivingClock
from hostrouting.watch.task import Watch
from hostrouting.watch.unit import ConfigureWatch

__all__ = ["ConfigureWatch", "LivingClock", "Watch"]
