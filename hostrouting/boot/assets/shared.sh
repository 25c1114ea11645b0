# --- functions of both boot scripts

# With -p bash takes no options or functions from the environment: errexit, for example, would end a run silently.
shopt -s extglob
# The kinds of routes whose rows begin with a word for it.
kinds_of_rows='@(local|broadcast|anycast|multicast|blackhole|unreachable|prohibit|throw|nat|xresolve)'
folder=/run/aks-flex-node
# The protocol that marks the routes of hostrouting, and the address family of the commands.
protocol=142 family=4
# The seconds that a boot waits, in all, for DHCP, a driver or the network's configuration; and those that it has waited.
waits=30 waited=$folder/waited seconds=${1-}
# `now`: look once; the verdict is the same.
[[ $seconds == now ]] && waits=0 seconds=''
givers=([4]='the log of its DHCP client' [6]='the advertisements of its router') # of a default route
# A line of it is no command: ip complains of it. No output has this character, so the complaint parts the outputs.
end=$'\36'
# iproute2 prints it for a pod's device if /run/netns has a file that is not a namespace, and goes on.
debris='Error: Peer netns reference is invalid.'

# Run groups of ip commands, one a line, in one process; set `parts` to the output of each. The commands of the first group
# may fail: parts[0] has their messages. All others read tables, and no row of a table begins like a message: if one fails,
# as when a table changes meanwhile, all of them are read again. If the tables cannot be read, set `trouble`, and fail. ip
# complains of the end of a group only after it has run all before. The commands come through a pipe, and since bash 5.1 a
# short here-string is one; before, and if it is long, bash writes a temporary file, and may have no room for one.
look() { # groups
  local text first='' i IFS=$end
  for _ in 1 2 3; do
    printf -v text "%s\n$end\n" "$@"
    # In a batch ip reads them as a shell does.
    [[ ! $text =~ [\"\'\\#] ]] || { trouble='a device has a quote, a backslash or a # in its name, which ip cannot read; rename it' && return 1; }
    if ((${#text} < 4000 && BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] > 500)); then
      text=$(exec ip ${details:+-d} ${family:+"-$family"} -o -force -batch - 2>&1 <<<"$text")
    else
      text=$(exec ip ${details:+-d} ${family:+"-$family"} -o -force -batch - 2>&1 < <(printf %s "$text" 2>/dev/null))
    fi
    # Of a library in /etc/ld.so.preload that has gone, each program complains before its own output.
    while [[ $text == 'ERROR: ld.so: '*$'\n'* ]]; do text=${text#*$'\n'}; done
    # shellcheck disable=SC2206 # Split at the complaints: thirty times as fast as %% and #.
    parts=($text)
    if ((${#parts[@]} != $# + 1)); then
      trouble="ip ended early; its last line: ${text##*$'\n'}"
      type -P ip >/dev/null || trouble="there is no program 'ip' in $PATH; install iproute2"
      return 1
    fi
    [[ $text =~ $debris ]] && parts=("${parts[@]//"$debris"$'\n'/}")
    parts[0]=$first${parts[0]} text=''
    for ((i = 0; i < $#; i++)); do
      # A complaint has two lines: Object "X" is unknown, try "ip help".\nCommand failed -:N
      parts[i]=${parts[i]%'Object "'}
      ((i)) && parts[i]=${parts[i]#*$'\n'*$'\n'} && [[ $'\n'${parts[i]} =~ $'\n'([A-Z][^$'\n']*) ]] && text=${BASH_REMATCH[1]}
    done
    [[ $text ]] || { unset -v 'parts[$#]' && return; }
    first=${parts[0]} && set -- '' "${@:2}"
  done
  trouble="ip cannot read the tables: $text" && return 1
}

# shellcheck disable=SC2034 # The check does not use `failed`.
# Set `answers` to those of the first group, a line for each command that prints one or fails: `!` and the message. And set
# `failed` to the messages, by the number of the command.
read_answers() {
  local line message=''
  failed=() answers=() && split "${parts[0]}"
  [[ ${parts[0]} == *'Command failed -:'* ]] || { answers=("${lines[@]}") && return; }
  for line in "${lines[@]}"; do
    case $line in
      'Command failed -:'*) failed[${line##*:}]=$message answers+=("!$message") ;;
      [A-Z]*) message=${line#'RTNETLINK answers: '} ;;
      *) answers+=("$line") ;;
    esac
  done
}

# Wait a second, and count it: the wall clock may be set meanwhile. Fail if the boot has waited long enough. If the count
# cannot be kept, only the first five minutes of a boot wait.
wait_a_second() { # reason
  local begun=$seconds up=''
  [[ ! $begun && -r $waited ]] && read -r seconds <"$waited"
  [[ $seconds == +([0-9]) ]] || seconds=0
  ((seconds < waits)) || return
  seconds=$((seconds + 1))
  { printf '%s\n' "$seconds" >"$waited" || { IFS=. read -r up _ </proc/uptime && ((${up:-300} < 300)); }; } 2>/dev/null || return
  [[ $begun ]] || tell 4 "waiting up to $((waits - seconds + 1)) s: $1"
  pause_for 1
}

# Seconds. Read from an empty pipe, to sleep without another program.
pause_for() { [[ ${never-} ]] || exec {never}<> <(:) && ! read -rt "$1" -u "$never"; }

# Text -> REPLY: with control characters, which a terminal would obey, as \x1b. UTF-8 has 32 of them with two bytes.
printable() {
  local code && REPLY=$1
  while [[ ${REPLY//$'\n'} =~ $'\xc2'[$'\x80'-$'\x9f']|[[:cntrl:]] ]]; do
    printf -v code %d "'${BASH_REMATCH[0]: -1}" && printf -v code '\\x%02x' $((code & 255))
    REPLY=${REPLY//"${BASH_REMATCH[0]}"/"$code"}
  done
}

tell() { # priority, lines: with a priority each for the journal, plain for a terminal
  local REPLY && printable "$2"
  [[ ${JOURNAL_STREAM-} ]] && printf '%s\n' "<$1>${REPLY//$'\n'/$'\n'<$1>}" && return
  printf '%s\n' "$REPLY" >&$(($1 > 4 ? 1 : 2))
}

# Report the verdict, and end. The journal gets it only if it differs from the last one, which `told` names a file for: the
# timer of watch, and the starts of gates, would repeat it for ever. `repaired` has what this run did all the same.
finish() { # exit status, priority, verdict
  local last='' fact=$3
  [[ ${JOURNAL_STREAM-} ]] || { tell "$2" "$3" && exit "$1"; }
  [[ -r $told ]] && IFS= read -rd '' last <"$told"
  if [[ $last == "$3" ]]; then
    [[ ! ${repaired-} ]] || tell 4 "$repaired"
    # Each failure has a line, though: the first that has no list after it.
    [[ ${fact%%$'\n'*} != *: ]] || fact=${fact#*:$'\n'  }
    (($2 > 3)) || tell 3 "as before, since $(date -r "$told" +%H:%M): ${fact%%$'\n'*}"
  else
    tell "$2" "$3"
    { printf %s "$3" >"$told"; } 2>/dev/null
  fi
  exit "$1"
}

# Row -> word: its destination; fifty times as fast as a pattern that removes the kind
# shellcheck disable=SC2053 # A pattern.
destination_of() { word=${1%% *} && [[ $word != $kinds_of_rows ]] || { word=${1#* } && word=${word%% *}; }; }

# Text -> lines; thirty times as fast as mapfile
# shellcheck disable=SC2206 # Split at line ends.
split() { local IFS=$'\n' && lines=($1); }

# Split a route, as `ip -o route show` prints it, into `kind`, `destination`, `metric`, `elsewhere` (its table, type of
# service and source prefix), `mark` (its protocol), the next hops in hop_dev, hop_gateway, hop_onlink and hop_state (`dead` or
# empty), and `rest`: the words after the destination without the metric, the protocol, the preference, the
# lifetime and the states.
# shellcheck disable=SC2034 # Neither script uses all of them.
parse_route() {
  local words word i dev='' gateway='' onlink='' state=''
  # Next hops follow a backslash and a tab; a backslash alone is part of a device's name.
  # shellcheck disable=SC2206 # Split at white space.
  words=(${1//\\$'\t'/ } nexthop)
  kind=unicast metric=0 elsewhere='' mark='' hop_dev=() hop_gateway=() hop_onlink=() hop_state=()
  # shellcheck disable=SC2053 # A pattern.
  [[ ${words[0]} == $kinds_of_rows ]] && kind=${words[0]} words=("${words[@]:1}")
  destination=${words[0]} rest=''
  for ((i = 1; i < ${#words[@]}; i++)); do
    word=${words[i]}
    case $word in
      dead) state=dead && continue ;;
      linkdown | offload | rt_offload | offload_failed | trap | rt_trap | unresolved) continue ;;
      nexthop)
        [[ $dev ]] && hop_dev+=("$dev") hop_gateway+=("$gateway") hop_onlink+=("$onlink") hop_state+=("$state")
        dev='' gateway='' onlink='' state='' ;;
      onlink) onlink=' onlink' ;;
      # Words with a value after them: a device may have any name, even `linkdown`.
      # @if ipv6@
      expires | error) i=$((i + 1)) && continue ;;
      pref) preference=${words[++i]} && continue ;;
      # @end@
      metric) metric=${words[++i]} && continue ;;
      proto) mark=${words[++i]} && continue ;;
      dev) dev=${words[++i]} word+=" $dev" ;;
      via)
        gateway=${words[++i]}
        # An IPv4 route may have an IPv6 gateway.
        [[ $gateway == inet6 ]] && gateway="inet6 ${words[++i]}"
        word+=" $gateway" ;;
      table | tos | from) word+=" ${words[++i]}" elsewhere+=" $word" ;;
    esac
    rest+=" $word"
  done
  rest=${rest%' nexthop'}
}

# Split a route of table main if it is a default route of the node: not one for a type of service, which few packets
# take, and not one of hostrouting's.
own_default() {
  # Routes that have expired stay listed for a while.
  [[ $1 == 'default '* && $1 != *' expires -'* ]] && parse_route "$1" && [[ ! $elsewhere && $mark != "$protocol" ]]
}
# @if ipv6@

# Set `lines` to these routes of IPv6, in the order in which a table prefers them: by prefix, metric and preference.
sort_routes() {
  local line length rank ranks=() && local -A order=([high]=0 [medium]=1 [low]=2)
  for line in "$@"; do
    parse_route "$line" && length=128
    [[ $destination == */* ]] && length=${destination#*/}
    [[ $destination == default ]] && length=0
    rank=$((128 - length << 34 | metric << 2 | ${order[$preference]}))
    ranks[rank]+=$line$'\n'
  done
  printf -v line %s "${ranks[@]}"
  split "$line"
}

# The device by which IPv6 must leave is that of the IPv4 default route that decides. Where that may be one of several, or
# there is none, it is the one that all default routes of IPv6 name. Fail if it is unknown.
find_exit_of_ipv6() { # ipv4_defaults, defaults -> expected
  local line list i decides && local -A exits=()
  for list in ipv4_defaults defaults; do
    local -n routes=$list
    exits=() decides=''
    for line in "${routes[@]}"; do
      own_default "$line" && [[ $list == defaults || $metric == "${decides:-$metric}" ]] || continue
      for i in "${!hop_dev[@]}"; do [[ ${hop_state[i]} == dead ]] || exits["/${hop_dev[i]}"]=yes decides=$metric; done
    done
    ((${#exits[@]} == 1)) && expected=("${!exits[@]}") && expected=("${expected[@]#/}") && return
  done
  return 1
}
# @end@
