#!/bin/bash -p
# Starts the units that their gate has refused, once routing is right; run by hostrouting-retry.service.
# Installed by hostrouting; 'hostrouting reset' removes it.
#
# While hostrouting-held@<gate>.service is active, <gate> is held: its drop-in has refused it, or asks just now. A stop
# of the unit stops its hostrouting-held@ as well, and the unit is no longer held; nor is one that has passed.
# This script checks routing with the scripts of hostrouting's units, never by starting those units, and ends when no
# unit is held.

set -fu
export LC_ALL=C

folder=/etc/aks-flex-node
required=/etc/systemd/system/hostrouting-ready.service.requires
# The files with the verdict that each script logged last.
verdicts=(/run/aks-flex-node/static-routes.told /run/aks-flex-node/route-overlap.told)
shortest_pause=2 longest_pause=10 # seconds

declare -A held=()    # gate: time of its last question, when its hostrouting-held@ was started or reloaded
declare -A started=() # gate: time of its last question when this script started it
declare -A unasked=() # gate: number of starts since then without a question
declare -A seen=()    # gates that were held while this script ran
declare -A enabled=() # gates that were enabled when they were first seen
declare -A state=()   # gate: its properties from `systemctl show`, one a line
told='' quiet=60      # the last message, and the seconds since

# Set `lines` to properties of units, with `end` after each unit: PROPERTIES UNIT...
show() {
    local text IFS=$'\n'
    text=$(systemctl show --property="$1" -- "${@:2}")
    # No here-string: a long one needs room in /tmp.
    # shellcheck disable=SC2206
    lines=(${text//$'\n\n'/$'\nend\n'} end)
}

# Fill `held`.
list_held() {
    local line gate='' active='' asked=''
    held=()
    show Id,ActiveState,StateChangeTimestampMonotonic 'hostrouting-held@*.service'
    for line in "${lines[@]}"; do
        case $line in
            Id=*) gate=${line#Id=hostrouting-held@} gate=${gate%.service} ;;
            ActiveState=*) active=${line#*=} ;;
            StateChangeTimestampMonotonic=*) asked=${line#*=} ;;
            end)
                case $active in activating | active | reloading) held[$gate]=$asked seen[$gate]=1 ;; esac
                gate='' active='' asked=''
                ;;
        esac
    done
}

# Fill `state` for these units.
look_at() {
    local line name='' block=''
    state=()
    (($#)) || return 0
    show Id,LoadState,UnitFileState,ActiveState,InactiveExitTimestampMonotonic,Job,DropInPaths,WantedBy,RequiredBy,BoundBy "$@"
    for line in "${lines[@]}"; do
        case $line in
            end) [[ -z $name ]] || state[$name]=$block; name='' block='' ;;
            Id=*) name=${line#Id=} ;;
            *) block+=$line$'\n' ;;
        esac
    done
}

# Set `answer` to one property of a unit in `state`.
property() {
    answer=$'\n'${state[$1]-}
    [[ $answer == *$'\n'"$2="* ]] || { answer=''; return; }
    answer=${answer#*$'\n'"$2="} answer=${answer%%$'\n'*}
    # systemctl quotes names with a backslash.
    answer=${answer//\"/} answer=${answer//\\\\/\\}
}

# Give up units that were masked, or disabled since they were first seen.
forget_unwanted() {
    local gate load file
    look_at "${!held[@]}"
    for gate in "${!held[@]}"; do
        property "$gate" LoadState; load=$answer
        property "$gate" UnitFileState; file=$answer
        case $file in enabled*) enabled[$gate]=1 ;; esac
        if [[ $load == masked || $file == masked* || (-n ${enabled[$gate]-} && $file == disabled) ]]; then
            forget "$gate" "it was ${file%%-*}"
        fi
    done
}

forget() {
    echo "<5>hostrouting: $1 is no longer held: $2"
    systemctl stop -- "hostrouting-held@$1.service"
    # Single quotes, so that bash does not expand the name twice: it may have a backslash.
    # shellcheck disable=SC2016
    unset -v 'held[$1]' 'seen[$1]' 'enabled[$1]' 'started[$1]' 'unasked[$1]'
}

# Set `open` to the reason why the gates are open, as their drop-in does.
break_glass() {
    local file words
    open=''
    for file in "$folder/hostrouting.disabled" /run/hostrouting.disabled; do
        [[ ! -e $file ]] || open="$file exists"
    done
    read -r words < /proc/cmdline || :
    [[ " $words " != *' hostrouting.disabled '* ]] || open='hostrouting.disabled is on the command line of the kernel'
    [[ -n $open ]]
}

# Run the scripts of hostrouting's units once, without waiting; print the first failure.
look() {
    local unit command said
    # Otherwise the scripts would log to the journal, and record a verdict that no unit has logged.
    unset -v JOURNAL_STREAM
    for unit in static-routes probe-snat check-route-overlap; do
        [[ -L $required/$unit.service ]] || continue
        # With a broken link, or a link to a mask, no gate can pass.
        [[ -f $required/$unit.service ]] || { echo "$unit.service has no unit file, or is masked"; return 1; }
        case $unit in
            probe-snat) command=(timeout 15 nft -f "$folder/probe-snat.nft") ;;
            *) command=(timeout 45 "$folder/$unit.sh" now) ;;
        esac
        said=$("${command[@]}" 2>&1 > /dev/null) || { echo "$unit does not succeed${said:+: $said}"; return 1; }
    done
}

# Succeed if routing is right; return 75 if another run holds the lock for 10 s.
is_right() {
    problem=$(
        exec 2>&1 9< "$folder" || exit
        flock --timeout 10 --conflict-exit-code 75 9 && look
    )
}

# Log a new problem, at most once a minute; in full, unless a unit has logged it.
tell_problem() {
    local text=$problem first=${problem%%$'\n'*}
    ((quiet >= 60)) && [[ $problem != "$told" ]] || return 0
    told=$problem quiet=0
    if [[ $(cat "${verdicts[@]}" 2> /dev/null) == *"${problem#*does not succeed: }"* ]]; then
        text="${first%:}; see: journalctl -b -u static-routes.service -u probe-snat.service -u check-route-overlap.service"
    fi
    text="hostrouting: units are still held: $text"
    echo "<4>${text//$'\n'/$'\n<4>'}"
}

# Start the held units, and the units that could not start because of them.
release() {
    local gate active line tries names=() ungated=()
    look_at "${!held[@]}"
    for gate in "${!held[@]}"; do
        property "$gate" ActiveState; active=$answer
        property "$gate" Job
        if [[ $active == active ]]; then
            systemctl stop -- "hostrouting-held@$gate.service"
            continue
        elif [[ -n $answer || ($active != inactive && $active != failed) ]]; then
            # It asks, ends a refusal, or is about to restart: a start would change nothing. Check it again.
            [[ -n ${started[$gate]-} ]] || pause=$shortest_pause
            continue
        fi
        [[ ${started[$gate]-} == "${held[$gate]}" ]] || unasked[$gate]=0
        started[$gate]=${held[$gate]}
        tries=${unasked[$gate]} unasked[$gate]=$((tries + 1))
        if ((tries < 3)); then
            names+=("$gate")
            property "$gate" DropInPaths
            [[ $answer == *'/10-hostrouting.conf'* ]] || ungated+=("hostrouting-held@$gate.service")
        else
            # It was started and never asked: another part of it fails.
            forget "$gate" "it was started and never asked for routing; see: systemctl status $gate"
        fi
    done
    ((${#names[@]})) || return 0
    line="starting ${names[*]}: ${1}"
    [[ $line == "$told" ]] || echo "<5>hostrouting: $line"
    told=$line
    find_dependents "${names[@]}"
    systemctl reset-failed -- "${names[@]}" 2> /dev/null
    # Dependents first: they start the units that they require, even if this script is killed here.
    systemctl start --no-block -- "${dependents[@]}" "${names[@]}"
    # A gate that was removed meanwhile does not stop the mark of a unit that has passed.
    ((${#ungated[@]} == 0)) || systemctl stop -- "${ungated[@]}"
}

# Start the units that could not start because of units that have come up by themselves.
start_dependents() {
    local gate up=()
    look_at "${!seen[@]}"
    for gate in "${!seen[@]}"; do
        property "$gate" ActiveState
        [[ $answer == inactive || $answer == failed ]] || up+=("$gate")
    done
    find_dependents "${up[@]}"
    ((${#dependents[@]} == 0)) || systemctl start --no-block -- "${dependents[@]}"
}

# Set `dependents` to the units that require one of these, directly or through others, were never started in this boot,
# and are wanted by an active target.
find_dependents() {
    local unit by next targets=() ring=("$@")
    local -A known=() wanted_by=()
    dependents=()
    look_at "${ring[@]}"
    while ((${#ring[@]})); do
        next=()
        for unit in "${ring[@]}"; do
            property "$unit" RequiredBy; by=$answer
            property "$unit" BoundBy; by+=" $answer"
            for by in $by; do
                [[ $by == *.target || -n ${known[$by]-} ]] || next+=("$by")
                known[$by]=1
            done
        done
        ring=()
        look_at "${next[@]}"
        for unit in "${next[@]}"; do
            property "$unit" InactiveExitTimestampMonotonic
            [[ $answer == 0 ]] || continue
            ring+=("$unit")
            property "$unit" WantedBy; by=$answer
            property "$unit" RequiredBy; by+=" $answer"
            for by in $by; do
                [[ $by != *.target ]] || { wanted_by[$unit]+=" $by" && targets+=("$by"); }
            done
        done
    done
    look_at "${targets[@]}"
    for unit in "${!wanted_by[@]}"; do
        for by in ${wanted_by[$unit]}; do
            property "$by" ActiveState
            [[ $answer != active ]] || { dependents+=("$unit") && break; }
        done
    done
}

pause=$shortest_pause
list_held
while :; do
    sleep "$pause"
    ((quiet += pause))
    ((pause = pause * 3 / 2, pause = pause < longest_pause ? pause : longest_pause))
    list_held
    forget_unwanted
    ((${#held[@]})) || break
    if break_glass; then
        release "routing is not checked: $open"
    elif is_right; then
        # Read again: a unit may have been stopped meanwhile.
        list_held
        release 'routing is right'
    elif (($? == 75)); then
        # Another run holds the lock, and 10 s have passed.
        ((quiet += 10, pause = shortest_pause))
    else
        tell_problem
    fi
done
start_dependents
