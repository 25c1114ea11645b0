#!/bin/bash -p
# Starts the units that their gate has refused, and those that waited for them, once routing is
# healthy; run by hostrouting-retry.service.
# Installed by hostrouting; 'hostrouting reset' removes it.
#
# While hostrouting-held@<gate>.service is active, <gate> is held: its drop-in has refused it or is
# checking now. When the unit is stopped or passes its gate, hostrouting-held@ stops, and the unit is
# no longer held.
# In the same way, hostrouting-waits@<unit>.service marks a unit that requires a gate and was about
# to start.
# This script ends when no unit is held.

# For `unset`: in double quotes, bash would expand a name twice, and it may contain a backslash.
# shellcheck disable=SC2016

set -f
export LC_ALL=C
# is[UNIT PROPERTY]: its value
# held[GATE]: when it last checked, so its hostrouting-held@ was started or reloaded
# waits[UNIT]: the same for its hostrouting-waits@
# tries[GATE TIME]: how often it was started since then
# enabled[UNIT]: it was enabled once
declare -A is held waits tries enabled
# The last reason that was logged.
logged=''
waiters=("$BASH" -p /etc/systemd/system/hostrouting-waiters.sh)

# Fill `is` and `all` for units, or for those that match a pattern.
read_units() {
    local line unit text IFS=$'\n'
    text=$(systemctl show --all --property=Id,LoadState,UnitFileState,ActiveState,Job,DropInPaths \
        --property=StateChangeTimestampMonotonic,InactiveExitTimestampMonotonic -- "$@")
    is=() all=()
    # Not a here-string, because a long one needs space in /tmp.
    for line in $text; do
        if [[ $line == Id=* ]]; then
            unit=${line#*=}
            all+=("$unit")
        fi
        is[$unit ${line%%=*}]=${line#*=}
    done
}

# Fill `held` and `waits`; forget units that are running, that were masked, or that are down and were
# disabled since they were first seen.
list_held() {
    local mark unit
    held=() waits=()
    read_units 'hostrouting-held@*.service' 'hostrouting-waits@*.service'
    for mark in "${all[@]}"; do
        [[ ${is[$mark ActiveState]} == @(activating|active|reloading) ]] || continue
        unit=${mark#*@}
        unit=${unit%.service}
        if [[ $mark == hostrouting-held@* ]]; then
            held[$unit]=${is[$mark StateChangeTimestampMonotonic]}
        else
            waits[$unit]=${is[$mark StateChangeTimestampMonotonic]}
        fi
    done
    ((${#held[@]} + ${#waits[@]})) || return
    read_units "${!held[@]}" "${!waits[@]}"
    for unit in "${!held[@]}"; do
        # An operator has removed its gate, and started it.
        [[ ${is[$unit ActiveState]} == active ]] && stop_marks held "$unit"
    done
    for unit in "${!waits[@]}"; do
        was_started "$unit" || continue
        stop_marks waits "$unit"
        unset -v 'waits[$unit]'
    done
    for unit in "${!held[@]}" "${!waits[@]}"; do
        # It may have been forgotten already, together with a unit that it requires.
        [[ ${held[$unit]}${waits[$unit]} ]] || continue
        is_taken_down "$unit" && forget "$unit" "it was ${is[$unit UnitFileState]%%-*}"
    done
}

is_down() { # unit
    [[ ${is[$1 ActiveState]} == @(inactive|failed) ]]
}

# Succeed if a unit that waited is running, or has run since.
was_started() { # unit
    # If systemd does not answer, it is still waiting.
    [[ ${is[$1 ActiveState]} && ! ${is[$1 Job]} ]] || return
    ! is_down "$1" || ((${is[$1 InactiveExitTimestampMonotonic]:-0} > ${waits[$1]:-0}))
}

# Succeed for a unit that was masked or disabled. One that restarts by itself is still started, until
# someone stops it.
is_taken_down() { # unit
    local file=${is[$1 UnitFileState]}
    [[ $file == enabled* ]] && enabled[$1]=1
    [[ ${is[$1 LoadState]} == masked || $file == masked* ]] && return
    [[ ${enabled[$1]} && $file == disabled ]] && is_down "$1"
}

# Forget a unit, and those that require it, because starting them would start it.
forget() { # unit, reason
    local unit units
    echo "<5>hostrouting: $1 is no longer held: $2"
    unset -v 'held[$1]' 'enabled[$1]'
    mapfile -t units < <("${waiters[@]}" list "$1")
    units+=("$1")
    for unit in "${units[@]}"; do
        unset -v 'waits[$unit]'
    done
    # In this order, so that no unit is left waiting for a gate that is not held.
    stop_marks waits "${units[@]}"
    stop_marks held "$1"
}

# Start the held units, and after them those that wait.
release() { # reason
    local gate try unit names=() gone=()
    # One may have been stopped during the check.
    list_held
    for gate in "${!held[@]}"; do
        try="$gate ${held[$gate]}"
        # It is checking, or about to restart, so starting it would change nothing.
        [[ ${is[$gate Job]} ]] && continue
        is_down "$gate" || continue
        if ((${tries[$try]:-0} == 3)); then
            # It fails for another reason.
            forget "$gate" "it was started but never checked routing; see: systemctl status $gate"
            continue
        fi
        names+=("$gate")
        tries[$try]=$((${tries[$try]:-0} + 1))
        # Nothing else stops the marker of a unit that is no longer a gate.
        [[ ${is[$gate DropInPaths]} == */10-hostrouting.conf* ]] || gone+=("$gate")
    done
    ((${#names[@]})) || return
    echo "<5>hostrouting: starting ${names[*]}: $1"
    systemctl reset-failed -- "${names[@]}" 2> /dev/null
    systemctl start --no-block -- "${names[@]}"
    for unit in "${!waits[@]}"; do
        # release_waiters starts targets, without what they want, which would not wait for its gate.
        [[ ${is[$unit Job]} || $unit == *.target ]] || systemctl start --no-block -- "$unit"
    done
    stop_marks held "${gone[@]}"
}

stop_marks() { # `held` or `waits`, units
    local marks=("${@:2}")
    marks=("${marks[@]/#/hostrouting-$1@}")
    ((${#marks[@]} == 0)) || systemctl stop -- "${marks[@]/%/.service}"
}

# Start the units that waited for gates which are no longer held, because they passed by themselves or
# are no longer gates.
release_waiters() {
    local unit blocked mode
    ((${#waits[@]})) || return
    blocked=$("${waiters[@]}" list "${!held[@]}") || return
    for unit in "${!waits[@]}"; do
        [[ $'\n'$blocked$'\n' == *$'\n'"$unit"$'\n'* ]] && continue
        if [[ ! ${is[$unit Job]} ]]; then
            echo "<5>hostrouting: starting $unit: no gate holds what it requires"
            mode=replace
            # Not what a target wants, because an operator may have stopped that.
            [[ $unit == *.target ]] && mode=ignore-requirements
            systemctl start --no-block --job-mode="$mode" -- "$unit"
        fi
        stop_marks waits "$unit"
    done
}

# Succeed in WARN mode, which the drop-ins of the gates name.
is_warn() {
    grep -rqs --include=10-hostrouting.conf ' WARN; ' /etc/systemd/system
}

# Succeed while every gate is open.
is_disabled() {
    [[ -e /etc/aks-flex-node/hostrouting.disabled || -e /run/hostrouting.disabled ]] ||
        [[ " $(< /proc/cmdline) " == *' hostrouting.disabled '* ]]
}

# Each start of a gate starts this script. On a healthy node, the gate passes within half a second, and
# then nothing is held.
sleep 0.5
while true; do
    list_held
    release_waiters
    ((${#held[@]})) || break
    sleep 5
    if is_disabled; then
        release 'the gates are disabled'
        continue
    fi
    mode=STRICT
    is_warn && mode=WARN
    why=$("$BASH" -p /etc/aks-flex-node/hostrouting-ask.sh '' "$mode")
    status=$?
    # Log the reason only when it changes.
    [[ $why && $why != "$logged" ]] && echo "<4>hostrouting: units are held: ${why//$'\n'/$'\n<4>'}"
    logged=$why
    if ((status == 10)); then
        release 'routing is healthy'
    elif ((status != 11)) && [[ $mode == WARN ]]; then
        release 'routing could not be checked, and the mode is WARN'
    fi
done
