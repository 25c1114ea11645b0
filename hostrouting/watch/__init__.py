"""Keep routing right after the boot: the task that repairs and proves as events tell of changes.

signs          the manager of the process: its signs, reloads
unit           ConfigureWatch: the unit that runs a Watch, or the timer that runs the scripts of the boot again
task           Watch: the loop, the threads, their end, and one hold of the run lock for all of them
duty           a keeper, which acts after events, after a time, and after a failure, and its pace
installed      the config in force
trouble        what the log and the state have: failures that last, changes without end, the changes of one act
routes         the keeper of the static routes
proof          the keeper of the proof: alarms, their ends, markers
siblings       the thread of the siblings: the rules for IPv6 probes, stale_objects (of azure-vnet)
"""
