#!/bin/bash -p
# Asks whether routing is right now; run by the drop-in of each gate, and by hostrouting-retry.sh.
# Installed by hostrouting; 'hostrouting reset' removes it.
#
#   hostrouting-ask.sh [GATE MODE]     GATE: the unit that is about to start. MODE: WARN or STRICT
#
# Runs the files in the list that an apply has written, hostrouting.units; they do not wait then. The
# exit status is
#
#   10    GATE may start. A script that was cut, lost or killed ends with another status, and so
#         does this one.
#   11    routing is wrong, or unknown under STRICT: GATE is refused.
#   12    routing is unknown: something has failed, another run holds the lock, or an apply is open.
#         Of a gate only under WARN: STRICT refuses it.
#
# Without GATE the reason is printed: a line, if it is as before. The units themselves are started
# only if their states or messages are out of date.

set -fu
# Another user that could open a file could hold its lock.
umask 077
# A gate has an environment of its own.
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

folder=/etc/aks-flex-node
run=/run/aks-flex-node
systemd=/etc/systemd/system
# It changes together with the scripts, and has their checksums. What is not in it is not asked.
list=./hostrouting.units
# The last answer. A run holds its lock.
answer=$run/hostrouting.answer
# An apply holds this lock as long as it may undo what it has changed.
lock=$folder/hostrouting.lock
apply='run: @hostrouting apply@'
gate=''
# The seconds that this run may still wait for an apply: a refusal takes 33 s, and a gate has 50 s at
# least.
patience=16
# The files of the list, and one that is not that of the last apply.
files=() damaged=''
# The answer: the exit status, the unit that does not succeed, and its reason; the time since when
# the journal has this reason, empty for a new one, and the first fact of it in a line.
status='' unit='' reason='' since='' fact=''

# Set the answer.
conclude() { # status, unit, reason
    status=$1 unit=$2 reason=$3 since='' fact=''
}

# Check the files of the list: of a script that was cut, bash runs what is left, and nft loads that
# of a file. Set `damaged` to a file that is not that of the last apply.
check_files() {
    local answers file=''
    files=() damaged=$list
    [[ -f $list && -r $list ]] || return
    # A pipe in place of a script would never end.
    answers=$'\n'$(timeout 5 sha256sum --check "$list" 2> /dev/null)$'\n'
    # Its last line is that of this script: without it, the list was cut.
    while read -r _ file && [[ $file != ./hostrouting-ask.sh ]]; do
        files+=("$file")
    done < "$list"
    [[ $file == ./hostrouting-ask.sh ]] || return
    # A damaged sha256sum may print nothing; a right one prints nothing for a line of comment.
    for damaged in "${files[@]}" "$file"; do
        [[ $answers == *$'\n'"$damaged: OK"$'\n'* ]] || return
    done
}

# Print what a file of the list prints, and return its exit status; run in a subshell.
run_file() { # file
    umask 022
    [[ $1 == *.nft ]] || exec timeout 15 "$BASH" -p "$1" now ask
    timeout 15 nft -f "$1"
    # 0 is right, and 1 is wrong.
    return $(($? < 2 ? 10 + $? : 12))
}

# Run the files of the list; the first one that does not succeed gives the answer.
look() {
    local file name text noise
    conclude 12 '' "$folder cannot be entered; $apply"
    # Those of one apply: its folder stays when the next one exchanges it.
    cd -P "$folder/hostrouting" 2> /dev/null || cd "$folder" || return
    if ! check_files; then
        conclude 12 '' "${damaged/#./$folder} is lost or damaged; $apply"
        return
    fi
    for file in "${files[@]}"; do
        name=${file##*/}
        name=${name%.*}
        # A mask is no regular file.
        conclude 12 '' "$name: its unit file is lost or masked; $apply"
        [[ -f $systemd/$name.service ]] || return
        unit=$name
        text=$(run_file "$file" 2>&1)
        status=$?
        # What a library prints comes first. A script that could not answer has no values.
        IFS=$'\36' read -rd '' noise since fact reason < <(printf %s "$text")
        reason=$noise$reason
        [[ $status == 1[0-2] ]] || conclude 12 "$name" \
            "it ended with $status, which proves nothing; $apply${reason:+: $reason}"
        ((status == 10)) || return
        [[ $reason ]] && echo "$reason" >&2
    done
    conclude 10 '' ''
}

# Print when an apply has last begun to hold the lock.
last_apply() {
    date -r "$lock" +%s.%N 2> /dev/null
}

# Succeed if no apply is open, or once it has ended; wait once. Otherwise set the answer.
wait_for_apply() {
    local limit=$patience
    [[ -e $lock ]] || return 0
    conclude 12 '' "$lock cannot be opened; $apply"
    [[ -f $lock && -r $lock ]] || return
    flock --shared --nonblock 8 8< "$lock" && return
    conclude 12 '' 'an apply is under way, which may still be undone'
    patience=0
    flock --shared --timeout "$limit" 8 8< "$lock"
}

# Lock the last answer. If another run holds it, set the answer.
lock_answer() {
    [[ -d $run ]] || mkdir --mode=755 "$run" 2> /dev/null
    [[ -p $answer ]] && rm "$answer"
    # Where it cannot be made, runs may overlap.
    { exec 9<> "$answer"; } 2> /dev/null || return 0
    flock --timeout 10 9 && return
    conclude 12 '' "another hostrouting-ask.sh has held $answer for 10 s"
    return 1
}

# Succeed if the last answer, whose status is `was`, is that of this question, too.
take_answer() { # the time of the question
    local began='' now known='' text=''
    was=''
    # What another user wrote is no answer.
    [[ -O $run && -O $answer ]] || return
    { read -r began was unit && read -r known && read -r text; } 2> /dev/null < "$answer"
    # Bash would run a command in a number that it has not matched.
    [[ $was == 1[0-2] && $began == +([0-9]).+([0-9]) && $known == [0-9][0-9]:[0-9][0-9] ]] || return
    read -r now _ < /proc/uptime
    ((10#${1/./} < 10#${began/./} && 10#${began/./} <= 10#${now/./})) || return
    conclude "$was" "$unit" "as before, since $known: $text"
    since=$known
    fact=$text
}

# Write the answer for the runs that wait: what is new for this run is not for them.
write_answer() { # the time when it began
    local known=$since text=${fact:-${reason%%$'\n'*}}
    [[ $known ]] || printf -v known '%(%H:%M)T'
    { printf '%s\n' "$1 $status $unit" "$known" "$text" > "$answer"; } 2> /dev/null
}

# Succeed if the states of the units are out of date, or their last messages.
is_out_of_date() {
    local units
    if ((status == 10)); then
        units=("${files[@]##*/}")
        [[ $was != 10 ]] && systemctl is-failed --quiet "${units[@]%.*}"
        return
    fi
    # Without a unit there is no message.
    [[ $unit ]] || return
    systemctl is-failed --quiet "$unit" || return 0
    [[ ! $since && -s $run/${unit#check-}.told ]]
}

# Set the answer, one run at a time. A hundred gates may ask at once: an answer to a question that
# began later is theirs, too.
ask_in_turn() {
    local asked began applied
    conclude 12 '' 'there is no program flock; install util-linux'
    type -P flock > /dev/null || return
    applied=$(last_apply)
    wait_for_apply || return
    read -r asked _ < /proc/uptime
    lock_answer || return
    if ! take_answer "$asked"; then
        [[ -e $run/route-overlap.detected ]] && was=11
        read -r began _ < /proc/uptime
        look
        reason=${reason//<[0-9]>/}
        write_answer "$began"
    fi
    exec 9<&-
    # An apply that began meanwhile may undo what was found, or has undone it already.
    if ((status == 10)) && [[ $(last_apply) != "$applied" ]]; then
        ask_in_turn
        return
    fi
    is_out_of_date && systemctl start --no-block hostrouting-ready.service 2> /dev/null
}

# Set the answer; its reason names the unit.
ask() {
    ask_in_turn
    reason="${unit:+$unit: }${reason:-it ended without a message}"
}

# Succeed unless the gate has to be refused; end if routing is unknown under WARN.
may_start() {
    ask
    if [[ $status != 1[01] && $mode == WARN ]]; then
        reason="$gate starts, although routing is unknown: $reason"
        echo "<4>hostrouting: ${reason//$'\n'/$'\n<4>'}"
        exit 12
    fi
    ((status == 10))
}

# Mark the units that wait for the gate, which the retry is to start: systemd forgets them once the
# gate is refused.
mark_waiters() {
    "$BASH" -p "$systemd/hostrouting-waiters.sh" renew "$gate" > /dev/null 2>&1
}

# Refuse the gate, and end; return if it may start after a pause.
refuse() {
    local pause=3 paths
    mark_waiters
    # A Restart= without delay stays below the limit of 5 starts in 10 s, and is slowed down if it
    # goes on.
    [[ $(systemctl show --property=NRestarts -- "$gate") == NRestarts=0 ]] || pause=10
    echo "<3>hostrouting: $gate is refused: ${reason//$'\n'/$'\n<3>'}"
    sleep "$pause"
    # It may be right now, and the unit need not wait for its RestartSec=.
    may_start && return
    # A stop of the unit may have ended its start, and not this script (KillMode=process).
    kill -0 "$PPID" 2> /dev/null || exit 11
    # Without an answer of systemd, which may execute itself anew, it still is a gate.
    paths=$(systemctl show --property=DropInPaths -- "$gate")
    if [[ $paths == DropInPaths=* && $paths != */10-hostrouting.conf* ]]; then
        # Nothing would start this unit later.
        echo "<4>hostrouting: $gate is no gate any more"
        return
    fi
    # A reset, which has forgotten this unit, and an apply may have taken place meanwhile. And an
    # isolate has stopped all marks.
    systemctl start --no-block "$held"
    mark_waiters
    exit 11
}

# Answer the drop-in of a gate, and end.
answer_gate() { # gate, mode
    gate=$1 mode=$2 held=hostrouting-held@$1.service
    # No gate waits for optional rules, and each start loads them anew.
    if [[ -L $systemd/hostrouting-ready.service.wants/probe-snat.service ]]; then
        systemctl start --no-block probe-snat.service
    fi
    may_start || refuse
    systemctl stop --no-block "$held" 2> /dev/null
    exit 10
}

# Answer the retry, and end.
answer_retry() {
    ask
    ((status == 10)) || echo "$reason"
    exit "$status"
}

# One command: after an error of arithmetic, bash drops a command, and goes on with the next one.
if (($#)); then
    answer_gate "$@"
else
    answer_retry
fi
