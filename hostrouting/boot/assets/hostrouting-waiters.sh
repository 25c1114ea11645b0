#!/bin/bash -p
# Finds the units that require gates, directly or through others: a refused gate leaves them down
# for good.
# Installed by hostrouting; 'hostrouting reset' removes it. It is beside the units, because a gate
# needs it where /etc/aks-flex-node is gone.
#
#   hostrouting-waiters.sh list GATE...    prints them; run by hostrouting-retry.sh
#   hostrouting-waiters.sh mark GATE       marks by hostrouting-waits@ those that wait for their
#                                          start or restart; run by hostrouting-held@ as soon as the
#                                          gate asks, because systemd forgets their jobs when it is
#                                          refused

set -f
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

verb=$1
shift
# By which a unit requires another one, as that shows it.
binds=RequiredBy,RequisiteOf,BoundBy,ConsistsOf
found=()
# Those of the last step, whose dependents the next one finds.
level=("$@")
while ((${#level[@]})); do
    text=$(systemctl show --property="$binds" -- "${level[@]}") || exit
    # systemctl quotes names with a backslash.
    text=${text//\"/}
    text=${text//\\\\/\\}
    level=()
    for unit in ${text//=/ }; do
        # The names of the properties have no dot.
        [[ $unit == *.* ]] || continue
        # The marks are a part of their units.
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
    # A longer name is no unit.
    mark=hostrouting-waits@$unit.service
    ((${#mark} > 255)) || marks+=("$mark")
done < <(systemctl list-jobs --full --no-legend)
((${#marks[@]})) || exit 0
systemctl reload-or-restart --no-block -- "${marks[@]}"
