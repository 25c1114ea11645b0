"""An apply: read, decide, carry out, prove; commit or undo.

story       what a run selects, its plan, and the order of its steps
run         the run lock, the gates that wait, the commit and the undo
pair        ConfigureStaticRoutes and CheckRouteOverlap: tasks that are selections of the story
capability  both in the list of a node's capabilities
"""
