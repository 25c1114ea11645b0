#!/bin/bash -p
# Finds the units that require gates, directly or through others. If a gate is refused, systemd never
# starts them.
# Installed by hostrouting; 'hostrouting reset' removes it. It is next to the units, because gates
# need it even if /etc/aks-flex-node is gone.
#
#   hostrouting-waiters.sh list GATE...    prints them; run by hostrouting-retry.sh
#   hostrouting-waiters.sh mark GATE       marks with hostrouting-waits@ those that are about to
#                                          start or restart; run by hostrouting-held@ when the gate
#                                          begins its check, because systemd drops their jobs if it
#                                          is refused

set -f
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

verb=$1
shift
# The properties that list the units which require a unit.
binds=RequiredBy,RequisiteOf,BoundBy,ConsistsOf
found=()
# The units found in the last step.
level=("$@")
while ((${#level[@]})); do
    text=$(systemctl show --property="$binds" -- "${level[@]}") || exit
    # systemctl quotes names that contain a backslash.
    text=${text//\"/}
    text=${text//\\\\/\\}
    level=()
    for unit in ${text//=/ }; do
        # Property names contain no dot.
        [[ $unit == *.* ]] || continue
        # The markers are PartOf= their units.
        [[ $unit != hostrouting-@(held|waits)@* ]] || continue
        [[ " $* ${found[*]} " != *" $unit "* ]] || continue
        found+=("$unit")
        level+=("$unit")
    done
done
((${#found[@]})) || exit 0
if [[ $verb == list ]]; then
    printf '%s\n' "${found[@]}"
    exit
fi
marks=()
while read -r _ unit job _; do
    [[ $job == @(start|restart) && " ${found[*]} " == *" $unit "* ]] || continue
    # A longer name is not valid for a unit.
    mark=hostrouting-waits@$unit.service
    ((${#mark} > 255)) || marks+=("$mark")
done < <(systemctl list-jobs --full --no-legend)
((${#marks[@]})) || exit 0
systemctl reload-or-restart --no-block -- "${marks[@]}"
