#!/bin/bash -p
# Checks that traffic to the expected CIDRs leaves through allowed devices; check-route-overlap.service
# runs it.
# Installed by hostrouting; `hostrouting reset` removes it.
#
# The exit status is 10 if units may start, 11 if they may not, and 12 if the routing is unknown. If
# the script was cut, it ends with another one.
set -u
export LC_ALL=C
limits=()

# @PROGRAM@

run_program 40 check
status=$?
[[ $status == 1[01] ]] && exit "$status"
# The last verdict says nothing about now.
rm -f /run/hostrouting/route-overlap.* /run/aks-flex-node/route-overlap.*
if [[ $status != 1[23] ]]; then
    echo "<3>routing is unknown: the check ended with $status; run: @hostrouting apply@"
fi
exit 12
