"""Keep routing right after the boot: the task that repairs and proves after events.

signs          the manager of the process: its signs, reloads
unit           ConfigureWatch: the service of a Watch, or the timer of the scripts of the boot
task           Watch: the loop, the thread of the siblings, one hold of the run lock for all of them
duty           a keeper, which acts after events, after a time, and after a failure, and its pace
installed      the config in force
trouble        failures that last, in the log and in the state; the limit of lines in a minute
routes         the keeper of the static routes
proof          the keeper of the proof: alarms, their ends, markers
"""
