#!/bin/bash -p
# Starts the units that their gate has refused, once routing is right; run by hostrouting-retry.service.
# Installed by hostrouting; 'hostrouting reset' removes it.
#
# While hostrouting-held@<gate>.service is active, <gate> is held: its drop-in has refused it, or asks just now. A stop
# of the unit stops its hostrouting-held@ as well, and the unit is no longer held; nor is one that has passed.
# This script ends when no unit is held.

set -f
export LC_ALL=C
# is[UNIT PROPERTY]: its value
# held[GATE]: the time of its last question, when its hostrouting-held@ was started or reloaded
# tries[GATE TIME]: the starts since that question
# seen[GATE]: it was held while this script ran; enabled[GATE]: it was enabled once
declare -A is held tries seen enabled
pause=2 quiet=60 # seconds to the next question, and since the last message

# Fill `is` and `all` for units, or for those that match a pattern.
look_at() {
    local line unit text IFS=$'\n'
    text=$(systemctl show --all --property=Id,LoadState,UnitFileState,ActiveState,StateChangeTimestampMonotonic \
        --property=InactiveExitTimestampMonotonic,Job,DropInPaths,BoundBy,WantedBy,RequiredBy -- "$@")
    # systemctl quotes names with a backslash.
    text=${text//\"/} text=${text//\\\\/\\} is=() all=()
    # No here-string: a long one needs room in /tmp.
    for line in $text; do
        [[ $line != Id=* ]] || { unit=${line#*=} && all+=("$unit"); }
        is[$unit ${line%%=*}]=${line#*=}
    done
}

# Fill `held`; give up units that were masked, or disabled since they were first seen.
list_held() {
    local marker gate file
    held=()
    look_at 'hostrouting-held@*.service'
    for marker in "${all[@]}"; do
        [[ ${is[$marker ActiveState]} == @(activating|active|reloading) ]] || continue
        gate=${marker#hostrouting-held@} gate=${gate%.service}
        held[$gate]=${is[$marker StateChangeTimestampMonotonic]} seen[$gate]=1
    done
    ((${#held[@]})) || return
    look_at "${!held[@]}"
    for gate in "${!held[@]}"; do
        file=${is[$gate UnitFileState]}
        [[ $file != enabled* ]] || enabled[$gate]=1
        if [[ ${is[$gate LoadState]} == masked || $file == masked* || (${enabled[$gate]} && $file == disabled) ]]; then
            forget "$gate" "it was ${file%%-*}"
        fi
    done
}

forget() { # gate, reason
    echo "<5>hostrouting: $1 is no longer held: $2"
    systemctl stop -- "hostrouting-held@$1.service"
    # Single quotes, so that bash does not expand the name twice: it may have a backslash.
    # shellcheck disable=SC2016
    unset -v 'held[$1]' 'seen[$1]' 'enabled[$1]'
}

# Start the held units.
release() { # reason
    local gate try names=() done=()
    for gate in "${!held[@]}"; do
        try="$gate ${held[$gate]}"
        if [[ ${is[$gate ActiveState]} == active ]]; then
            done+=("hostrouting-held@$gate.service")
        elif [[ ${is[$gate Job]} || ${is[$gate ActiveState]} != @(inactive|failed) ]]; then
            # It asks, ends a refusal, or is about to restart: a start would change nothing. Look again.
            [[ ${tries[$try]} ]] || pause=2
        elif ((${tries[$try]:-0} == 3)); then
            # Another part of it fails.
            forget "$gate" "it was started and never asked for routing; see: systemctl status $gate"
        else
            names+=("$gate") tries[$try]=$((${tries[$try]:-0} + 1))
            # Nothing else stops the mark of a unit that is no gate any more.
            [[ ${is[$gate DropInPaths]} == */10-hostrouting.conf* ]] || done+=("hostrouting-held@$gate.service")
        fi
    done
    if ((${#names[@]})); then
        [[ ${names[*]} == "$started" ]] || echo "<5>hostrouting: starting ${names[*]}: $1"
        started=${names[*]}
        systemctl reset-failed -- "${names[@]}" 2> /dev/null
        systemctl start --no-block -- "${names[@]}"
        start_dependents
    fi
    ((${#done[@]} == 0)) || systemctl stop -- "${done[@]}"
}

# Start the units that require one that was held and is up or starts, directly or through others, if they were never
# started in this boot and an active target wants them, or one that is about to be.
start_dependents() {
    local unit by target i ring=() dependents=()
    look_at '*'
    for unit in "${!seen[@]}"; do
        [[ ${is[$unit ActiveState]} == @(inactive|failed) && ! ${is[$unit Job]} ]] || ring+=("$unit")
    done
    for ((i = 0; i < ${#ring[@]}; i++)); do
        for by in ${is[${ring[i]} RequiredBy]} ${is[${ring[i]} BoundBy]}; do
            [[ ${is[$by InactiveExitTimestampMonotonic]} == 0 && $by != *.target && " ${ring[*]} " != *" $by "* ]] || continue
            ring+=("$by")
            for target in ${is[$by WantedBy]} ${is[$by RequiredBy]}; do
                # A boot may not have reached its target yet.
                [[ $target == *.target && (${is[$target ActiveState]} == active || ${is[$target Job]}) ]] && dependents+=("$by")
            done
        done
    done
    ((${#dependents[@]} == 0)) || systemctl start --no-block -- "${dependents[@]}"
}

list_held
while :; do
    sleep "$pause"
    ((quiet += pause, pause = pause * 3 / 2, pause = pause < 10 ? pause : 10))
    list_held
    ((${#held[@]})) || break
    if [[ -e /etc/aks-flex-node/hostrouting.disabled || -e /run/hostrouting.disabled ||
        " $(< /proc/cmdline) " == *' hostrouting.disabled '* ]]; then
        release 'the gates are disabled'
    elif said=$(/etc/aks-flex-node/hostrouting-ask.sh); then
        # Read again: a unit may have been stopped meanwhile.
        list_held
        release 'routing is right'
    elif (($? == 75)); then
        ((quiet += 10, pause = 2))
    elif [[ $said != *': as before, since '* && $said != "$told" ]] && ((quiet >= 60)); then
        told=$said quiet=0
        echo "<4>hostrouting: units are held: ${said//$'\n'/$'\n<4>'}"
    fi
done
# Gates may have come up by themselves.
start_dependents
