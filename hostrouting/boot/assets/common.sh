# --- functions of both boot scripts

shopt -s extglob
folder=/run/aks-flex-node
# It travels with this script, and answers what is not plain. Its first line names the interpreter.
program=/etc/aks-flex-node/hostrouting.zip
# Answers questions that it reads.
ip=(ip -o -force -batch -)
# The protocol that marks the routes of hostrouting.
protocol=142
# The seconds after its first wait in which a boot waits for DHCP, a driver or the network's
# configuration; empty once nothing waits. The file has the second after the boot in which they end.
waits=30
waited=$folder/waited
# `now`: look once; the verdict is the same. `now ask`: values for hostrouting-ask.sh precede it.
[[ ${1-} == now ]] && waits=''
asked=${2-}
# The first thing that is not plain: a word for it, and what ip printed.
why=''
detail=''
# What may be late, as far as the script has found it.
late=''

# A damage has changed a command: kill the script, since nothing after it counts.
# shellcheck disable=SC2329 # Bash runs it, but not for a word with a slash.
command_not_found_handle() {
    echo "$0 is damaged: there is no command $1" >&2
    kill -KILL "$$"
}

# Take why a look has ended: it took place in a subshell, and `found` is what that printed.
take_reason() {
    why=${found%%$'\36'*}
    detail=${found#*$'\36'}
    return 1
}

# End a look: the program answers. The word has no letter that one bit makes a slash.
defer() { # word, what ip printed
    printf '%s\36%s' "$1" "${2-}"
    exit 1
}

# Put questions to ip, a process for all of them; set `parts` to the answers. A line that ip does
# not understand parts them, since it has a character that no output has. Fail with `complaint`, what
# ip prints beside the answers: a table may have changed meanwhile, or a module may be absent.
look() { # family, questions
    local questions IFS=$'\36'
    local form='(Error|RTNETLINK|Command|Dump|Cannot)[^'$'\n'']*'
    # The first one is empty: a complaint precedes each answer.
    printf -v questions '%s\n\36\n' '' "${@:2}"
    # By a pipe: for a here-string, bash may need room in /tmp.
    complaint=$(exec "${ip[@]}" "-$1" 2>&1 < <(printf %s "$questions"))
    # shellcheck disable=SC2206 # Split at the complaints.
    parts=($complaint)
    ((${#parts[@]} == $# + 1)) || return
    parts=("${parts[@]:1:$#-1}")
    # A complaint has two lines: Object "X" is unknown, try "ip help".\nCommand failed -:N
    parts=("${parts[@]%'Object "'}")
    parts=("${parts[@]#'" is unknown, try "ip help".'$'\nCommand failed -:'*$'\n'}")
    # For a file in /run/netns that is not a namespace, ip complains, and goes on.
    parts=("${parts[@]//$'Error: Peer netns reference is invalid.\n'}")
    [[ ${parts[*]} =~ $form ]] || return 0
    complaint=${BASH_REMATCH[0]}
    return 1
}

# Succeed if a device is InfiniBand, whose link type is 32.
is_infiniband() { # device, links
    local form=$'(@[^ ]+)?: <[^\n]* link/(infiniband|\\[32])'
    [[ $'\n'$2 =~ $'\n'[0-9]+": $1"$form ]]
}

# Succeed if a name in the config is that of a device, or a network that stands for it: for hardware
# that alone has an address in the network.
is_named() { # device, name
    [[ $2 == "$1" ]] && return
    [[ $2 == */* ]] || return
    look 4 "address show to $2" "address show dev $1 to $2" || defer ip "$complaint"
    # Bash 5.1 makes nothing of empty parts.
    [[ ${parts[1]-} && ${parts[1]} == "${parts[0]}" && -e /sys/class/net/$1/device ]]
}

# Let the program answer what is not plain. Set `status` to its exit status (10: right. 11: wrong.
# 14: wrong, and a second may help. Otherwise it could not answer), and `said` to what it printed:
# with 14 the reason to wait, and with 12 why it could not answer.
run_program() { # verb
    local python=''
    status=12
    said="$program is no file that can be read; run: @hostrouting apply@"
    [[ -f $program ]] || return 0
    { IFS= read -r python < "$program"; } 2> /dev/null || return 0
    python=${python#'#!'}
    python=${python%' -IS'}
    [[ -f $python && -x $python ]] || python=/usr/bin/python3
    said='there is no Python 3.10 or newer; install it as /usr/bin/python3'
    [[ -x $python ]] || return 0
    # A gate gives this script 15 s, and one that hangs would keep the lock of its answer.
    # The interpreter prints to stderr why it ends.
    said=$(
        # An apply may exchange it meanwhile: Python opens it again and again.
        file=$program
        cd -P "${program%.zip}" 2> /dev/null && file=$PWD/${program##*/}
        exec timeout --kill-after=1 10 "$python" -I -S "$file" "$1" "$why" \
            ${waits:+wait} ${asked:+"$asked"} 2>&1
    )
    status=$?
}

# Answer, and end. A script has three functions for it: `answer_alone` succeeds if all is plain, and
# `pass` ends then; `give_up` ends without an answer of the program.
answer() { # verb
    until answer_alone; do
        ask_program "$1"
    done
    pass
}

# Take the answer of the program, and end; return after a second if that may help.
ask_program() { # verb
    run_program "$1"
    if [[ $status == 1[01] ]]; then
        [[ $said ]] && printf '%s\n' "$said"
        # Under WARN a wrong node starts its units.
        [[ $mode == WARN ]] && exit 10
        exit "$status"
    fi
    if [[ $status == 14 && $waits ]]; then
        # After the last wait, one more answer is due.
        wait_a_second "$said" || waits=''
        return
    fi
    # It hangs: a unit has no time for another one.
    [[ $status == @(124|137) ]] && give_up
    # Routing may become plain.
    wait_a_second "${late:-not plain ($why), and no answer of $program}" || give_up
}

# Print why nothing is proven.
explain() {
    local text="cannot be proven here: $why" words=${said##*$'\n'}
    detail=${detail%%$'\n'*}
    detail=${detail//[![:print:]]/ }
    [[ $detail ]] && text+=" (${detail% })"
    case $status in
        12) words=$said ;;
        124 | 137) words="$program has not answered after 10 s; run: @hostrouting apply@" ;;
        *) words="$program ended with $status${words:+ ($words)}; run: @hostrouting apply@" ;;
    esac
    printf '%s\n' "$text; ${words//[![:print:]]/ }"
}

# Wait a second; fail if the boot has waited long enough, or cannot note when it will have.
wait_a_second() { # reason
    local now='' end='' left
    [[ $waits ]] || return
    # The wall clock may be set meanwhile.
    IFS=. read -r now _ < /proc/uptime || return
    [[ -f $waited ]] && read -r end < "$waited"
    if [[ $end != +([0-9]) ]]; then
        end=$((now + waits))
        { printf '%s\n' "$end" > "$waited"; } 2> /dev/null || return
        print 4 "waiting up to $waits s: $1"
    fi
    left=$((10#$end - now))
    ((0 < left && left <= waits)) || return
    sleep 1
}

# Print lines, each with its priority for the journal.
print() { # priority, lines
    local mark=${JOURNAL_STREAM:+"<$1>"}
    printf '%s\n' "$mark${2//$'\n'/$'\n'"$mark"}"
}

# Print the verdict, and end. The journal gets it only if it differs from the last one, which `told`
# names a file for: the timer of watch, and the starts of gates, would repeat it for ever.
finish() { # exit status, priority, verdict
    local last='' since='' fact=${3%%$'\n'*}
    # A person gets all of it.
    [[ ${JOURNAL_STREAM-} ]] || told=/dev/null
    [[ -r $told ]] && IFS= read -rd '' last < "$told"
    [[ $last == "$3" ]] && since=$(date -r "$told" +%H:%M)
    [[ $asked ]] && printf '\36%s\36%s\36' "$since" "$fact"
    if [[ ! $since ]]; then
        print "$2" "$3"
        { printf %s "$3" > "$told"; } 2> /dev/null
    elif (($2 <= 3)); then
        # Each failure has a line, though.
        print 3 "as before, since $since: $fact"
    fi
    exit "$1"
}
