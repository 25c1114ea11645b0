#!/bin/bash -p
# Asks whether routing is right now; run by the drop-in of each gate, and by hostrouting-retry.sh.
# Installed by hostrouting; 'hostrouting reset' removes it.
#
#   hostrouting-ask.sh [GATE]        GATE: the unit that is about to start
#
# Runs the scripts of the units in /etc/aks-flex-node/hostrouting.units, which do not wait then. Exits 0 if all succeed, 75
# if another run holds the lock, otherwise 1 with the reason: a line, if it is as before. The units themselves are started
# only if their states or messages are out of date.

set -fu
# A gate has an environment of its own.
umask 022
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

folder=/etc/aks-flex-node run=/run/aks-flex-node systemd=/etc/systemd/system
# It changes together with the scripts. What is not in it is not asked, and all that is in it must be there.
list=$folder/hostrouting.units
status=75 unit='' units=() reason="another hostrouting-ask.sh has held $run/hostrouting.answer for 10 s"

# Run the scripts; set `status`, the `unit` that does not succeed, its reason, and `ran` if its script ran.
look() {
    local file command && status=1 unit='' ran='' reason="$list is lost; run: @hostrouting apply@"
    # `read` succeeds at a NUL, which a power cut may have left.
    [[ -f $list && -s $list ]] && ! read -rd '' -a units < "$list" || return
    for unit in "${units[@]}"; do
        file=$folder/$unit.sh command=("$BASH" -p "$file" now) ran=''
        [[ $unit != probe-snat ]] || file=$folder/probe-snat.nft command=(nft -f "$file")
        reason='its unit file or script is lost or masked; run: @hostrouting apply@'
        # A mask is no regular file. An empty script would succeed, and so would NULs, if not in bash itself.
        [[ -f $systemd/$unit.service && -s $file ]] && ran=yes && reason=$(exec timeout 15 "${command[@]}" 2>&1) || return
        [[ ! $reason ]] || echo "$reason" >&2
    done
    status=0
}

# The same, one run at a time. A hundred gates may ask at once: an answer to a question that began later is theirs, too.
ask() {
    local asked began='' was='' known=''
    read -r asked _ < /proc/uptime
    # Another user that could open the file could hold its lock.
    umask 077
    { exec 9<> "$run/hostrouting.answer"; } 2> /dev/null || exec 9< "$0"
    umask 022
    flock --timeout 10 9 || return
    { read -r began was unit && read -r reason; } 2> /dev/null < "$run/hostrouting.answer"
    [[ $began ]] && ((10#${began/./} > 10#${asked/./})) && status=$was && exec 9<&- && return
    [[ ! -e $run/route-overlap.detected ]] || was=1
    read -r began _ < /proc/uptime
    look
    # The others have the first fact in a line.
    reason=${reason//<[0-9]>/} known=$reason
    [[ ${known%%$'\n'*} != *: ]] || known=${known#*:$'\n'  }
    [[ $known == 'as before, since '* ]] || known="as before, since $(printf '%(%H:%M)T'): ${known%%$'\n'*}"
    { echo "$began $status $unit"$'\n'"$known" > "$run/hostrouting.answer"; } 2> /dev/null
    exec 9<&-
    # Start the units if their states are out of date, or their last messages.
    if ((status == 0)); then
        [[ $was != 0 ]] && systemctl is-failed --quiet "${units[@]}" || return
    elif systemctl is-failed --quiet "$unit"; then
        [[ $reason != 'as before, since '* && -s $run/${unit#check-}.told ]] || return
    fi
    # A unit without its script has no message.
    [[ ! $ran ]] || systemctl start --no-block hostrouting-ready.service 2> /dev/null
}

# No gate waits for optional rules, and each start loads them anew.
[[ ! -L $systemd/hostrouting-ready.service.wants/probe-snat.service || $# == 0 ]] || systemctl start --no-block probe-snat.service
ask
reason="${unit:+$unit: }${reason:-it ended without a message}"
(($#)) || { ((status == 0)) || echo "$reason" && exit "$status"; }
held=hostrouting-held@$1.service
if ((status)); then
    # A Restart= without delay stays below the limit of 5 starts in 10 s, and is slowed down if it goes on.
    pause=3
    [[ $(systemctl show --property=NRestarts -- "$1") == NRestarts=0 ]] || pause=10
    echo "<3>hostrouting: $1 is refused: ${reason//$'\n'/$'\n<3>'}"
    sleep "$pause"
    # A stop of the unit may have ended its start, and not this script (KillMode=process).
    kill -0 "$PPID" 2> /dev/null || exit 1
    # It may be right now, and the unit need not wait for its RestartSec=.
    ask
fi
if ((status)); then
    # Without an answer of systemd, which may execute itself anew, it still is a gate.
    paths=$(systemctl show --property=DropInPaths -- "$1")
    if [[ $paths != DropInPaths=* || $paths == */10-hostrouting.conf* ]]; then
        # A reset, which has forgotten this unit, and an apply may have taken place meanwhile.
        systemctl is-active --quiet "$held" || systemctl start --no-block "$held"
        exit 1
    fi
    # Nothing would start this unit later.
    echo "<4>hostrouting: $1 is no gate any more"
fi
systemctl stop --no-block "$held" 2> /dev/null
exit 0
