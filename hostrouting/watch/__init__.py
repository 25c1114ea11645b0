"""Keep routing right after the boot: the task that repairs and proves after events.

signs          the manager of the process: its signs
unit           ConfigureWatch: the service of a Watch, or the timer of the scripts of the boot
task           Watch: the loop, the thread of the siblings, one hold of the run lock for all of them
installed      the config to begin with
routes         the keeper of the static routes: contests with other programs
proof          the keeper of the proof: alarms, their ends, markers

`boot/keeper.py` has what all keepers share; `base/` their pace, and what the log has of them.
"""
