"""What all packages need: errors, findings, exit statuses, rate limits and log helpers.

errors         all errors except those that hold a route or a report
findings       NodeFinding: one entry of `check`, with its severity and next step
commands       exit statuses, and the command lines that outputs suggest
conflicts      plan again if another program changed the node in the meantime
refused_files  why the system refused to read or write a file, and what to do about it
waits          log a wait once, and report it to observers
pace           rate limits for repeated work
facts          log each fact once, until it changes
signals        the signals that cancel a command
values         a base class for attrs values that import faster
"""
