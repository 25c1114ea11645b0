"""An apply: read, decide, carry out, check; commit or undo.

plan        what a run brings into force, and what that changes on a node
carry_out   the order of its steps, and the check that commits it
live        a run on a host without boot files: what it refuses, and what it records
run         the run lock, the parts of a run, the gates that wait, the commit and the undo
proof       the check that ends it: its wait, its markers and its findings
pair        ConfigureStaticRoutes and CheckRouteOverlap: tasks that do a part of an apply
capability  both in the list of a node's capabilities
"""
