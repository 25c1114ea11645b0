#!/bin/bash -p
# Repairs the routes if necessary, and checks if routing is healthy. The drop-in of each
# gate runs it, and so does hostrouting-retry.sh.
# Installed by hostrouting; `hostrouting reset` removes it.
#
#   hostrouting-ask.sh GATE MODE     GATE: the unit that is about to start; "" prints the reason and
#                                    changes no unit. MODE: WARN or STRICT
#
# The exit status is
#
#   10    GATE may start. A script that was truncated, lost or killed ends with another status.
#   11    GATE is refused: in STRICT mode if routing is unhealthy, in WARN mode if a route cannot be
#         restored.
#   12    Unknown: something failed, another run holds the lock, or an apply may still be undone.
#         In STRICT mode GATE is refused; in WARN mode it starts.

set -fu
# Another user who can open a file can hold its lock.
umask 077
# The environment comes from the gate.
set +o posix
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

run=/run/hostrouting
systemd=/etc/systemd/system
# When the last check began, its mode and exit status, and the reason on a line. The program writes
# it.
answer=$run/answer
# An apply holds this lock as long as it may be undone.
lock=/etc/aks-flex-node/hostrouting.lock
apply='run: @hostrouting apply@'
# A hostrouting-retry.sh of an earlier version, left by a killed apply, passes neither.
gate=${1-} mode=${2-STRICT}
# How long this run may still wait for an apply, in seconds: a refusal takes 33 s, and a gate has at
# least 50 s.
patience=16
# The answer, and the exit status of the one before it.
status='' reason='' previous=''
# The command that limits the program's capabilities; hostrouting-retry.service limits its own.
limits=()

# @PROGRAM@

# Set the answer.
conclude() { # status, reason
    status=$1 reason=$2
}

# Print when an apply last took the lock.
last_apply() {
    date -r "$lock" +%s.%N 2> /dev/null
}

# Succeed if no apply is in progress, or once it has ended; wait only once. Otherwise set the answer.
wait_for_apply() {
    local limit=$patience
    [[ -e $lock ]] || return 0
    conclude 12 "$lock cannot be opened; $apply"
    [[ -f $lock && -r $lock ]] || return
    flock --shared --nonblock 8 8< "$lock" && return
    conclude 12 'an apply is in progress and may still be undone'
    patience=0
    flock --shared --timeout "$limit" 8 8< "$lock"
}

# Wait until no other gate is checking; if that takes too long, set the answer.
take_turn() {
    [[ -d $run ]] || mkdir --mode=755 "$run" 2> /dev/null
    # Nobody else can have put a link there. If the lock cannot be created, runs may overlap.
    [[ -O $run && ! -L $run ]] || return 0
    { exec 9<> "$run/ask.lock"; } 2> /dev/null || return 0
    flock --timeout 10 9 && return
    conclude 12 "another hostrouting-ask.sh has held $run/ask.lock for 10 s"
    return 1
}

# Succeed if the last check in this mode began after the question, so that its answer is valid.
take_answer() { # the time of the question
    local began='' by='' text='' now
    # An answer that another user wrote does not count.
    [[ -O $run && -O $answer && -f $answer && ! -L $answer ]] || return
    { read -r began by previous && read -r text; } 2> /dev/null < "$answer"
    # In arithmetic, bash would run a command substitution in an unchecked number.
    [[ $by == "$mode" && $previous == 1[0-2] && $began == +([0-9]).+([0-9]) ]] || return
    read -r now _ < /proc/uptime
    ((10#${1/./} < 10#${began/./} && 10#${began/./} <= 10#${now/./})) || return
    conclude "$previous" "$text"
}

# Run the program and set the answer.
run_check() {
    reason=$(run_program 15 ask "$mode" 2>&1)
    status=$?
    [[ $status == 1[0-2] ]] && return
    if [[ $status != 13 ]]; then
        reason="the check failed with status $status; $apply${reason:+: $reason}"
    fi
    status=12
}

# Run the units again if their state differs from the answer, for `systemctl status`.
refresh_units() {
    local is_failed=no
    [[ $status != "$previous" && $status != 12 ]] || return
    systemctl is-failed --quiet static-routes.service check-route-overlap.service && is_failed=yes
    [[ $status$is_failed == 10no || $status$is_failed == 11yes ]] && return
    systemctl start --no-block hostrouting-ready.service 2> /dev/null
}

# Load the rules that gates wait for, because another program may have deleted them.
load_rules() {
    [[ -L $systemd/hostrouting-ready.service.requires/probe-snat.service ]] || return
    timeout 20 systemctl start probe-snat.service 2> /dev/null && return
    conclude 11 'probe-snat.service has failed; see: systemctl status probe-snat.service'
}

# Set the answer. A hundred gates may ask at once; one check answers all that asked before it began.
ask() {
    local asked applied
    conclude 12 'there is no program flock; install util-linux'
    type -P flock > /dev/null || return
    applied=$(last_apply)
    wait_for_apply || return
    read -r asked _ < /proc/uptime
    take_turn || return
    if ! take_answer "$asked"; then
        run_check
        refresh_units
    fi
    exec 9<&-
    # An apply that has begun in the meantime may make the answer invalid.
    if [[ $(last_apply) != "$applied" ]]; then
        ask
        return
    fi
    ((status == 10)) && load_rules
}

# Succeed if the gate may start; exit if the routing is unknown in WARN mode.
may_start() {
    ask
    if [[ $status != 1[01] && $mode == WARN ]]; then
        print 4 "$gate starts although routing could not be checked: $reason"
        exit 12
    fi
    ((status == 10))
}

print() { # priority, lines
    echo "<$1>hostrouting: ${2//$'\n'/$'\n'"<$1>"}"
}

# Refuse the gate, unless it may start after a pause.
refuse() {
    local pause=3 paths
    # Keep a Restart= without delay below the limit of 5 starts in 10 s, and slow it down if it goes
    # on.
    [[ $(systemctl show --property=NRestarts -- "$gate") == NRestarts=0 ]] || pause=10
    print 3 "$gate is refused: $reason"
    sleep "$pause"
    # If routing is healthy now, the unit need not wait for its RestartSec=.
    may_start && return
    # Stopping the unit may have ended its start but not this script (KillMode=process).
    kill -0 "$PPID" 2> /dev/null || exit "$status"
    # If systemd does not answer, for example because it re-executes, it is still a gate.
    paths=$(systemctl show --property=DropInPaths -- "$gate")
    if [[ $paths == DropInPaths=* && $paths != */10-hostrouting.conf* ]]; then
        # Nothing would start this unit later.
        print 4 "$gate is no longer a gate"
        status=10 reason=''
        return
    fi
    # A reset or `systemctl isolate` may have stopped the markers.
    "$BASH" -p "$systemd/hostrouting-waiters.sh" mark "$gate" > /dev/null 2>&1
    systemctl start --no-block "hostrouting-held@$gate.service"
}

# Print why every gate is open; fail if the gates are not disabled.
why_open() {
    local file word=hostrouting.disabled
    for file in "/run/$word" "/etc/aks-flex-node/$word"; do
        if [[ -e $file ]]; then
            echo "$file exists"
            return
        fi
    done
    [[ " $(< /proc/cmdline) " == *" $word "* ]] && echo "$word is on the kernel's command line"
}

# Answer the drop-in of a gate and exit.
answer_gate() {
    local open
    if open=$(why_open); then
        print 4 "routing is not checked: $open"
        exit 10
    fi
    # shellcheck disable=SC2034 # run_program reads it.
    limits=(setpriv '--bounding-set=-all,+net_admin')
    # Gates do not wait for optional rules, but each start loads them again.
    if [[ -L $systemd/hostrouting-ready.service.wants/probe-snat.service ]]; then
        systemctl start --no-block probe-snat.service
    fi
    may_start || refuse
    [[ $status != 10 || ! $reason ]] || print 4 "$reason"
    # Bash continues after a damaged command above.
    exit "$status"
}

# Answer hostrouting-retry.sh and exit.
answer_retry() {
    ask
    [[ ! $reason ]] || echo "$reason"
    exit "$status"
}

# A single command, because after an arithmetic error bash continues with the next one.
if [[ $gate ]]; then
    answer_gate
else
    answer_retry
fi
