#!/bin/bash -p
# Starts the units that their gate has refused, and those that waited for them, once routing is
# right; run by hostrouting-retry.service.
# Installed by hostrouting; 'hostrouting reset' removes it.
#
# While hostrouting-held@<gate>.service is active, <gate> is held: its drop-in has refused it, or
# asks just now. A stop of the unit stops its hostrouting-held@ as well, and the unit is no longer
# held; nor is one that has passed.
# hostrouting-waits@<unit>.service marks in the same way a unit that requires a gate, and was about
# to start.
# This script ends when no unit is held.

# For `unset`: in double quotes, bash would expand a name twice, and one may have a backslash.
# shellcheck disable=SC2016

set -f
export LC_ALL=C
# is[UNIT PROPERTY]: its value
# held[GATE]: the time of its last question, when its hostrouting-held@ was started or reloaded
# waits[UNIT]: the same of its hostrouting-waits@
# tries[GATE TIME]: the starts since that question
# enabled[UNIT]: it was enabled once
declare -A is held waits tries enabled
# The reason that the log has.
logged=''
waiters=("$BASH" -p /etc/systemd/system/hostrouting-waiters.sh)

# Fill `is` and `all` for units, or for those that match a pattern.
look_at() {
    local line unit text IFS=$'\n'
    text=$(systemctl show --all --property=Id,LoadState,UnitFileState,ActiveState,Job,DropInPaths \
        --property=StateChangeTimestampMonotonic,InactiveExitTimestampMonotonic -- "$@")
    is=() all=()
    # No here-string: a long one needs room in /tmp.
    for line in $text; do
        if [[ $line == Id=* ]]; then
            unit=${line#*=}
            all+=("$unit")
        fi
        is[$unit ${line%%=*}]=${line#*=}
    done
}

# Fill `held` and `waits`; give up units that are up, that were masked, or that are down and were
# disabled since they were first seen.
list_held() {
    local mark unit
    held=() waits=()
    look_at 'hostrouting-held@*.service' 'hostrouting-waits@*.service'
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
    look_at "${!held[@]}" "${!waits[@]}"
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
        # An earlier turn may have forgotten it, together with a unit that it requires.
        [[ ${held[$unit]}${waits[$unit]} ]] || continue
        is_taken_down "$unit" && forget "$unit" "it was ${is[$unit UnitFileState]%%-*}"
    done
}

is_down() { # unit
    [[ ${is[$1 ActiveState]} == @(inactive|failed) ]]
}

# Succeed if a unit that waited is up, or has run since.
was_started() { # unit
    # Without an answer of systemd it still waits.
    [[ ${is[$1 ActiveState]} && ! ${is[$1 Job]} ]] || return
    ! is_down "$1" || ((${is[$1 InactiveExitTimestampMonotonic]:-0} > ${waits[$1]:-0}))
}

# Succeed for a unit that was masked or disabled. One that restarts by itself comes up all the same,
# until it is stopped.
is_taken_down() { # unit
    local file=${is[$1 UnitFileState]}
    [[ $file == enabled* ]] && enabled[$1]=1
    [[ ${is[$1 LoadState]} == masked || $file == masked* ]] && return
    [[ ${enabled[$1]} && $file == disabled ]] && is_down "$1"
}

# Give up a unit, and with it those that require it: their start would start it.
forget() { # unit, reason
    local unit units
    echo "<5>hostrouting: $1 is no longer held: $2"
    unset -v 'held[$1]' 'enabled[$1]'
    mapfile -t units < <("${waiters[@]}" list "$1")
    units+=("$1")
    for unit in "${units[@]}"; do
        unset -v 'waits[$unit]'
    done
    # A run that is killed between them leaves no unit that waits for a gate which is not held.
    stop_marks waits "${units[@]}"
    stop_marks held "$1"
}

# Start the held units, and after them those that wait.
release() { # reason
    local gate try unit names=() gone=()
    # One may have been stopped during the question.
    list_held
    for gate in "${!held[@]}"; do
        try="$gate ${held[$gate]}"
        # It asks, ends a refusal, or is about to restart: a start would change nothing.
        [[ ${is[$gate Job]} ]] && continue
        is_down "$gate" || continue
        if ((${tries[$try]:-0} == 3)); then
            # Another part of it fails.
            forget "$gate" "it was started and never asked for routing; see: systemctl status $gate"
            continue
        fi
        names+=("$gate")
        tries[$try]=$((${tries[$try]:-0} + 1))
        # Nothing else stops the mark of a unit that is no gate any more.
        [[ ${is[$gate DropInPaths]} == */10-hostrouting.conf* ]] || gone+=("$gate")
    done
    ((${#names[@]})) || return
    echo "<5>hostrouting: starting ${names[*]}: $1"
    systemctl reset-failed -- "${names[@]}" 2> /dev/null
    systemctl start --no-block -- "${names[@]}"
    for unit in "${!waits[@]}"; do
        # release_waiters starts a target without what it wants: now it would not wait for its gate.
        [[ ${is[$unit Job]} || $unit == *.target ]] || systemctl start --no-block -- "$unit"
    done
    stop_marks held "${gone[@]}"
}

stop_marks() { # `held` or `waits`, units
    local marks=("${@:2}")
    marks=("${marks[@]/#/hostrouting-$1@}")
    ((${#marks[@]} == 0)) || systemctl stop -- "${marks[@]/%/.service}"
}

# Start the units that wait for gates which are held no more: they have passed by themselves, or are
# gates no more.
release_waiters() {
    local unit blocked mode
    ((${#waits[@]})) || return
    blocked=$("${waiters[@]}" list "${!held[@]}") || return
    for unit in "${!waits[@]}"; do
        [[ $'\n'$blocked$'\n' == *$'\n'"$unit"$'\n'* ]] && continue
        if [[ ! ${is[$unit Job]} ]]; then
            echo "<5>hostrouting: starting $unit: no gate holds what it requires"
            mode=replace
            # Nothing that a target wants: an operator may have stopped that.
            [[ $unit == *.target ]] && mode=ignore-requirements
            systemctl start --no-block --job-mode="$mode" -- "$unit"
        fi
        stop_marks waits "$unit"
    done
}

# Succeed if the gates open where routing is unknown: their drop-ins have the mode.
is_warn() {
    grep -rqs --include=10-hostrouting.conf ' WARN; ' /etc/systemd/system
}

# Succeed while every gate is open.
is_disabled() {
    [[ -e /etc/aks-flex-node/hostrouting.disabled || -e /run/hostrouting.disabled ]] ||
        [[ " $(< /proc/cmdline) " == *' hostrouting.disabled '* ]]
}

# Each start of a gate starts this script. A gate that is right has passed after half a second, and
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
    # Until it changes, the log has the reason once.
    [[ $why && $why != "$logged" ]] && echo "<4>hostrouting: units are held: ${why//$'\n'/$'\n<4>'}"
    logged=$why
    if ((status == 10)); then
        release 'routing is right'
    elif ((status != 11)) && [[ $mode == WARN ]]; then
        release 'routing is unknown, and the mode is WARN'
    fi
done
