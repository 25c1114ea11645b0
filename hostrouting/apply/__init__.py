"""A run of `hostrouting apply`: read the node, decide, change, check; commit or undo.

plan        what a run wants, and what it changes on a node
carry_out   the steps of a run, and the check that commits it
live        a run on a host without boot files: what it refuses and records
run         the run lock, the steps of the report, the gates that wait, commit and undo
check       the check at the end of a run: its wait, its markers and its findings
tasks       ConfigureStaticRoutes and CheckRouteOverlap, which do a part of an apply
capability  how the list of a node's features describes both
"""
