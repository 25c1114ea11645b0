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
# enabled[GATE]: it was enabled once
# noted[GATE]: it was held in this boot, also by a run that was killed, and its dependents were not looked at since
declare -A is held tries enabled noted
# An apply makes `wake`, to have routing looked at within a second. `pause` are the seconds to the next question, and `quiet`
# those since the last message.
run=/run/aks-flex-node wake=$run/hostrouting.wake pause=2 quiet=60

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

# Fill `held`; give up units that are up, that were masked, or that are down and were disabled since they were first seen.
list_held() {
    local marker gate file gone=()
    held=()
    look_at 'hostrouting-held@*.service'
    for marker in "${all[@]}"; do
        [[ ${is[$marker ActiveState]} == @(activating|active|reloading) ]] || continue
        gate=${marker#hostrouting-held@} gate=${gate%.service}
        held[$gate]=${is[$marker StateChangeTimestampMonotonic]}
    done
    ((${#held[@]})) || return
    look_at "${!held[@]}"
    for gate in "${!held[@]}"; do
        # It passed while the gates were disabled, or stops its own mark just now.
        [[ ${is[$gate ActiveState]} != active ]] || { gone+=("hostrouting-held@$gate.service") && continue; }
        file=${is[$gate UnitFileState]}
        [[ $file != enabled* ]] || enabled[$gate]=1
        # One that restarts by itself comes up all the same, until it is stopped.
        if [[ ${is[$gate LoadState]} == masked || $file == masked* ||
            (${enabled[$gate]} && $file == disabled && ${is[$gate ActiveState]} == @(inactive|failed)) ]]; then
            forget "$gate" "it was ${file%%-*}"
        fi
    done
    ((${#gone[@]} == 0)) || systemctl stop -- "${gone[@]}"
}

forget() { # gate, reason
    echo "<5>hostrouting: $1 is no longer held: $2"
    systemctl stop -- "hostrouting-held@$1.service"
    # Single quotes, so that bash does not expand the name twice: it may have a backslash.
    # shellcheck disable=SC2016
    unset -v 'held[$1]' 'enabled[$1]'
}

# Start the held units.
release() { # reason
    local gate try names=() gone=()
    for gate in "${!held[@]}"; do
        try="$gate ${held[$gate]}"
        if [[ ${is[$gate Job]} || ${is[$gate ActiveState]} != @(inactive|failed) ]]; then
            # It asks, ends a refusal, or is about to restart: a start would change nothing. Look again.
            [[ ${tries[$try]} ]] || pause=2
        elif ((${tries[$try]:-0} == 3)); then
            # Another part of it fails.
            forget "$gate" "it was started and never asked for routing; see: systemctl status $gate"
        else
            names+=("$gate") tries[$try]=$((${tries[$try]:-0} + 1))
            # Nothing else stops the mark of a unit that is no gate any more.
            [[ ${is[$gate DropInPaths]} == */10-hostrouting.conf* ]] || gone+=("hostrouting-held@$gate.service")
        fi
    done
    ((${#names[@]})) || return 0
    [[ ${names[*]} == "$started" ]] || echo "<5>hostrouting: starting ${names[*]}: $1"
    started=${names[*]}
    systemctl reset-failed -- "${names[@]}" 2> /dev/null
    systemctl start --no-block -- "${names[@]}"
    ((${#gone[@]} == 0)) || systemctl stop -- "${gone[@]}"
}

# Start the units that require a gate that was held and is up or starts, directly or through others, if they were never
# started in this boot and an active target wants them, or one that is about to be.
start_dependents() {
    local unit by target i ring=() dependents=() passed=()
    for unit in "${!held[@]}"; do noted[$unit]=1; done
    for unit in "${!noted[@]}"; do [[ ${held[$unit]} ]] || passed+=("$unit"); done
    if ((${#passed[@]})); then
        look_at '*'
        for unit in "${passed[@]}"; do
            [[ ${is[$unit ActiveState]} == @(inactive|failed) && ! ${is[$unit Job]} ]] || ring+=("$unit")
            # shellcheck disable=SC2016
            unset -v 'noted[$unit]'
        done
    fi
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
    { printf '%s\n' "${!noted[@]}" > "$run/hostrouting.held"; } 2> /dev/null
}

# Succeed if the drop-in of a gate has the mode WARN.
only_warns() { # gate
    local path
    for path in ${is[$1 DropInPaths]}; do
        [[ $path == */10-hostrouting.conf ]] || continue
        grep --quiet ' mode=WARN ' "$path" && return
    done
    return 1
}

# Start the held units, although routing is unknown, but for those of STRICT.
release_unknown() {
    local gate
    for gate in "${!held[@]}"; do
        # shellcheck disable=SC2016
        only_warns "$gate" || unset -v 'held[$gate]'
    done
    release 'routing is unknown, and the mode is WARN'
}

while read -r gate; do [[ ! $gate ]] || noted[$gate]=1; done 2> /dev/null < "$run/hostrouting.held"
while list_held; start_dependents; ((${#held[@]})); do
    for ((i = 0; i < pause; i++)); do [[ -e $wake ]] || sleep 1; done
    ((quiet += pause, pause = pause * 3 / 2, pause = pause < 10 ? pause : 10))
    [[ ! -e $wake ]] || { rm -f "$wake" && pause=2; }
    if [[ -e /etc/aks-flex-node/hostrouting.disabled || -e /run/hostrouting.disabled ||
        " $(< /proc/cmdline) " == *' hostrouting.disabled '* ]]; then
        list_held
        release 'the gates are disabled'
    else
        said=$(/etc/aks-flex-node/hostrouting-ask.sh)
        case $? in
            10)
                # Read again: a unit may have been stopped meanwhile.
                list_held
                release 'routing is right'
                continue
                ;;
            75) ((quiet += 10, pause = 2)) && continue ;;
            # That of another release, whose retry is another one, too.
            0) exec "$0" ;;
            11) ;;
            *)
                list_held
                release_unknown
                ;;
        esac
        if [[ $said != *': as before, since '* && $said != "$told" ]] && ((quiet >= 60)); then
            told=$said quiet=0
            echo "<4>hostrouting: units are held: ${said//$'\n'/$'\n<4>'}"
        fi
    fi
done
