"""What all packages need: errors, findings, the words of the command, pace and facts, signatures.

errors         those of all rooms, but for those that have a route or a report
findings       NodeFinding: one entry of `check`, with its severity and next step
commands       exit statuses, answers, and the command lines that outputs name
refused_files  why the system refuses a file, and the next step
waits          a wait that is logged once, and reported
pace           how soon something is done again
facts          what the log has: each fact once, until it changes
signatures     that of a class whose __new__ refuses
signals        those that cancel a command
values         a base of values that start fast
"""
