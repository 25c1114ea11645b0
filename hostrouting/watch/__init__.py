"""Keep routing right after the boot: the task that repairs routes as events tell that they changed.

task           Watch: the threads, and their end
loop, duty     one thread: what is due, after events, after a time, after a failure; pace: how often
installed      the config in force
routes         the keeper of the static routes
siblings       the thread of the siblings: probes (the rules for IPv6 probes), stale_objects (of azure-vnet)
relay          events for that thread
shared_lock    one hold of the run lock for all threads
account        the changes of one act
"""

from __future__ import annotations

from hostrouting.watch.task import Watch

__all__ = ["Watch"]
