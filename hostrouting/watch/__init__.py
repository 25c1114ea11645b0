"""Keep routing right after the boot: one loop that repairs and checks after events.

task           Watch: the loop, which waits for events, repairs the routes and checks the routing
duty           when the loop and the worker run a reconciler: events, times, pace, failures
routes         the static routes: which events concern them, their repair, contested routes
check          the expected CIDRs: alarms, their ends, markers
worker         the thread of the optional features, and the run lock that it shares with the loop
signs          the clock of a service, for the watchdog
installed      the config to begin with
unit           ConfigureWatch: the service of a Watch, or the timer of the scripts of the boot
networkd       the drop-in for systemd-networkd, and findings about it

`boot/reconciler.py` has what all reconcilers share; `base/` their pace, and what the log has.
"""
