"""The boot half of a capability: its script, its unit, and the gates that wait for both.

    Boot            installs and removes units, and plans both
    BootUnit        a oneshot with all its files; a Departure is a unit to remove
    BootTemplate    the assets of a capability, from which it renders its BootUnit
    intent          the config in force, as a file
    program         the program that the scripts run, as one zip file
    steps           a survey of the disk, and the steps from there to the disk as it should be: all
                    scripts, the program and the intent are exchanged at once
    recorded        changes of files, with their inverse
    gates           unsuitable, open, held and failed gates
    reconciler      what a watch runs, and what an optional feature gives to it
    task            the common parts of tasks
    assets/         hostrouting-ready.service, the drop-in of gates, the scripts that check routing
                    for gates and start them again, the function that runs the program

    static-routes.service ───────┐ Before= and RequiredBy=
                                 ├──> hostrouting-ready.service, at boot
    check-route-overlap.service ─┘

    static-routes.service ───────> hostrouting.zip routes
    check-route-overlap.service ─> hostrouting.zip check
    ExecStartPre= of every gate ─┐
                                 ├──> hostrouting-ask.sh ──> hostrouting.zip ask
    hostrouting-retry.service ───┘

A refused gate leaves hostrouting-held@<gate>.service active, and hostrouting-retry.service starts
the gate once routing is right. A stop of the gate stops that marker (PartOf=), so that a unit that
the user stopped stays down. hostrouting-waits@<unit>.service marks in the same way the units that
were about to start and require the gate: they start after it.

No other room writes hostrouting-ready.service, its links, or a gate's drop-in.
"""
