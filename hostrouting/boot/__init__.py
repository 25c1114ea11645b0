"""What runs at boot: scripts, units, and the gates that wait for them.

    boot                Boot: installs and removes units, and plans both
    layout              paths; BootUnit: a oneshot unit with all its files; UnitRemoval;
                        BootTemplate: renders a BootUnit from assets
    installed_config    the config in force, as a file
    program             the program that the scripts run, as one zip file
    steps               Survey: what is on the disk; Steps: from there to the wanted state, where
                        all scripts, the program and the installed config are exchanged at once
    recorded            changes to files that can be undone
    gates               unsuitable, open, held and failed gates
    capability          what the commands for a whole node need to know about a capability
    reconciler          the base class of what the watch runs
    task                the base classes of tasks
    assets/             hostrouting-ready.service, the drop-in of gates, the scripts that check
                        routing for gates and start them again, the function that runs the program

    static-routes.service ───────┐ Before= and RequiredBy=
                                 ├──> hostrouting-ready.service, at boot
    check-route-overlap.service ─┘

    static-routes.service ───────> hostrouting.zip routes
    check-route-overlap.service ─> hostrouting.zip check
    ExecStartPre= of every gate ─┐
                                 ├──> hostrouting-ask.sh ──> hostrouting.zip ask
    hostrouting-retry.service ───┘

When a gate is refused, hostrouting-held@<gate>.service stays active, and hostrouting-retry.service
starts the gate once routing is healthy. Stopping the gate also stops that marker (PartOf=), so a
unit that the user stopped stays down. In the same way, hostrouting-waits@<unit>.service marks units
that were about to start and require the gate: they start after it.

No other package writes hostrouting-ready.service, its links, or a gate's drop-in.
"""
