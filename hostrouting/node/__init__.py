"""A whole node: one config, all capabilities.

capabilities   the list of the capabilities, with all that the others here need of them
boot_files     the files of all capabilities
at_boot        the program that boot units and gates run
configure      Configure and Reset: all tasks under one lock, with one commit
check          all findings of a node
state          what was found on a node, in its order, with a verdict
report         the same as text and JSON: the one report of check, status, plan and apply
words          its findings in short and in full
status         the report with the facts of a node
fix            a config with the routes that repair its node
watch          Watch with the reconcilers of all optional features, run until a signal
history        the entry that a command leaves in the journal
output         what commands print
"""
