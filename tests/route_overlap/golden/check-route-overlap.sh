#!/bin/bash -p
# Proves that every address of the expected CIDRs leaves by the device of the default route, or by an allowed one.
#
#   check-route-overlap.sh [now]        now: do not wait for a default route
#
# Each `hostrouting apply` writes this file again: to change it, change hostRouting.routeOverlap in the agent's config.
# It needs only bash and ip. The deciding route can change only where a route or a selector of a policy rule begins or
# ends: the CIDRs are cut there, and the kernel is asked about one address of each part.
set -fu
export LC_ALL=C

mode=STRICT
cidrs=(
  172.16.0.0/16
  10.0.0.0/8
  169.254.169.254/32
  10.0.0.0/24
)
# These contain all of them.
roots=(
  10.0.0.0/8
  169.254.169.254/32
  172.16.0.0/16
)
# hostRouting.staticRoutes has routes for all addresses of these.
routed=(
)
# Patterns of device names.
allowed=(
  'cni*'
  'cbr0'
  'cilium_*'
  'lxc*'
  'cali*'
  'vxlan.calico'
  'tunl0'
  'azure0'
  'azv*'
  'flannel*'
  'veth*'
  'kube-*'
  'nodelocaldns'
  'unbounded0'
  'wg518*'
  'geneve0'
  'vxlan0'
  'ipip0'
  'mesh*'
  'veth[0-9]?'
)

((${#cidrs[@]})) || exit 0

# --- functions of both boot scripts

# With -p bash takes no options or functions from the environment: errexit, for example, would end a run silently.
folder=/run/aks-flex-node
protocol=142 # Marks the routes of hostrouting.
waits=30 # Seconds to wait, in all, for DHCP, a driver or the network's configuration.
# `now`: look once; the verdict is the same.
[[ ${1-} == now ]] && waits=0
end=$'Object "end" is unknown, try "ip help".\nCommand failed -:'

# Run the ip commands in `$1`, one a line, with the options after it; set `answer` to the output, or to the reason why
# it is incomplete. The last line is no command: ip complains of it only after it has run all others. Through a pipe: bash
# would write a long here-document to a temporary file, and may have no room for one.
ask() {
  local commands=$1
  [[ $commands != *[\"\'\\#]* ]] || by_number
  answer=$(exec ip -4 -o "${@:2}" -batch - 2>&1 < <(printf '%s\nend\n' "$commands" 2>/dev/null))
  if [[ $answer == *"$end"+([0-9]) ]]; then
    answer=${answer%"$end"*}
    return 0
  elif ! type -P ip >/dev/null; then
    answer="there is no program 'ip' in $PATH; install iproute2"
  else
    answer="ip ended early; its last line: ${answer##*$'\n'}"
  fi
  return 1
}

# The same, if every command must succeed: no row of a table begins like a message.
look() {
  for _ in 1 2 3; do # A table may change while it is read.
    ask "$1" || return
    [[ $'\n'$answer == *$'\n'[A-Z]* ]] || return 0
  done
  answer="ip cannot read the tables: ${answer%$'\n'}"
  return 1
}

# In a batch ip reads a #, a quote and a backslash as a shell does, so a device with one of them in its name is given by
# its number: `dev if7`. Changes `commands`.
by_number() {
  local answer lines asked words line i
  split "$commands"
  asked=("${lines[@]}") commands=''
  look 'link show' || answer=''
  answer=$'\n'$answer
  for line in "${asked[@]}"; do
    # shellcheck disable=SC2206 # Split at white space.
    words=($line)
    for ((i = 1; i < ${#words[@]}; i++)); do
      [[ ${words[i - 1]} == @(dev|oif) && ${words[i]} == *[\"\'\\#]* && $answer == *": ${words[i]}"[:@]* ]] || continue
      line=${answer%%": ${words[i]}"[:@]*}
      words[i]=if${line##*$'\n'}
    done
    commands+=${words[*]}$'\n'
  done
  commands=${commands%$'\n'}
}

# Count seconds by waiting: the wall clock may be set meanwhile.
wait_a_second() {
  # Read from an empty pipe, to sleep without another program.
  [[ ${never-} ]] || exec {never}<> <(:)
  read -rt 1 -u "$never"
}

tell() { # priority, lines: with a priority each for the journal, plain for a terminal
  if [[ ${JOURNAL_STREAM-} ]]; then
    printf '%s\n' "<$1>${2//$'\n'/$'\n'<$1>}"
  elif (($1 > 4)); then
    printf '%s\n' "$2"
  else
    printf '%s\n' "$2" >&2
  fi
}

# Report the verdict of a run. The journal gets a new verdict in full, and an unchanged bad one at most once a minute.
tell_verdict() { # file with the last verdict, priority, lines
  last_told "$1"
  if [[ ! ${JOURNAL_STREAM-} || $last != "$3" ]]; then
    tell "$2" "$3"
  elif (($2 > 4 || 0 <= EPOCHSECONDS - last_time && EPOCHSECONDS - last_time < 60)); then
    return 0
  else
    tell "$2" "still: ${3%%$'\n'*}"
  fi
  [[ ${JOURNAL_STREAM-} ]] && { printf '%s\n%s' "$EPOCHSECONDS" "$3" >"$1"; } 2>/dev/null
  return 0
}

last_told() { # file with the last verdict -> last, last_time
  last='' last_time=0
  [[ ${JOURNAL_STREAM-} && -r $1 ]] || return 0
  IFS= read -rd '' last <"$1"
  [[ $last == +([0-9])$'\n'* ]] && last_time=${last%%$'\n'*}
  last=${last#*$'\n'}
}

split() { # text -> lines; thirty times as fast as mapfile
  local IFS=$'\n'
  # shellcheck disable=SC2206 # Split at line ends.
  lines=($1)
}

# Split a route, as `ip -o route show` prints it, into `kind`, `destination`, `metric`, `elsewhere` (its table and type of
# service), `mark` (its protocol), the next hops in hop_dev, hop_gateway, hop_onlink and hop_dead, and `rest`: the words
# after the destination without the metric, the protocol and the state of the links.
# shellcheck disable=SC2034 # Neither script uses all of them.
parse_route() {
  local words word i dev='' gateway='' onlink='' dead=''
  # Next hops follow a backslash and a tab; a backslash alone is part of a device's name.
  # shellcheck disable=SC2206 # Split at white space.
  words=(${1//\\$'\t'/ } nexthop)
  kind=unicast metric=0 elsewhere='' mark='' hop_dev=() hop_gateway=() hop_onlink=() hop_dead=()
  case ${words[0]} in
    local | broadcast | anycast | multicast | blackhole | unreachable | prohibit | throw | nat | xresolve)
      kind=${words[0]}
      words=("${words[@]:1}")
      ;;
  esac
  destination=${words[0]} rest=''
  for ((i = 1; i < ${#words[@]}; i++)); do
    word=${words[i]}
    case $word in
      dead) dead=yes && continue ;;
      linkdown | offload | rt_offload | offload_failed | trap | rt_trap | unresolved) continue ;;
      nexthop)
        [[ $dev ]] && hop_dev+=("$dev") hop_gateway+=("$gateway") hop_onlink+=("$onlink") hop_dead+=("$dead")
        dev='' gateway='' onlink='' dead=''
        ;;
      onlink) onlink=' onlink' ;;
      # Words with a value after them: a device may have any name, even `linkdown`.
      dev | via | metric | table | tos | proto)
        i=$((i + 1))
        case $word in
          dev) dev=${words[i]} ;;
          via) gateway=${words[i]} ;;
          metric) metric=${words[i]} && continue ;;
          proto) mark=${words[i]} && continue ;;
          *) elsewhere+=" $word ${words[i]}" ;;
        esac
        word+=" ${words[i]}"
        ;;
    esac
    rest+=" $word"
  done
  rest=${rest%' nexthop'}
}

# Split a route of table main if it is a default route of the node: not one for a type of service, which few packets
# take, and not one of hostrouting's. `leads_out` is the device of its first next hop that is not dead, by which the
# kernel sends; empty if all are dead.
own_default() {
  local i
  leads_out=''
  [[ $1 == 'default '* ]] || return
  parse_route "$1"
  [[ ! $elsewhere && $mark != "$protocol" ]] || return
  for i in "${!hop_dev[@]}"; do
    [[ ! ${hop_dead[i]} ]] && leads_out=${hop_dev[i]} && break
  done
  return 0
}

detected=$folder/route-overlap.detected
ok=$folder/route-overlap.ok
told=$folder/route-overlap.told

# --- addresses: results in REPLY, or in low and high, because a subshell takes as long as all the rest

dotted() {
  printf -v REPLY '%d.%d.%d.%d' $(($1 >> 24)) $(($1 >> 16 & 255)) $(($1 >> 8 & 255)) $(($1 & 255))
}

bounds() { # of a CIDR, an address or 'default'
  local IFS=./
  # shellcheck disable=SC2086  # split into octets and length
  if [[ $1 == default ]]; then set -- 0 0 0 0 0; else set -- $1 32; fi
  low=$((($1 << 24 | $2 << 16 | $3 << 8 | $4) & 0xffffffff << 32 - $5 & 0xffffffff))
  high=$((low | 0xffffffff >> $5))
}

# --- the kernel's routes and rules: the edges where answers can change

edge() { # a route or selector
  bounds "$1"
  edges[low]=1
  edges[high + 1]=1
}

read_rule() {
  local -i i
  local text=$1
  # shellcheck disable=SC2206  # split at white space
  local words=($1)
  for ((i = 1; i < ${#words[@]}; i++)); do
    case ${words[i]} in
      from | to)
        i+=1
        [[ ${words[i]} == all ]] && continue
        edge "${words[i]}"
        [[ ${words[i - 1]} == from ]] && by_source=yes
        ;;
      lookup) break ;;
      blackhole | unreachable | prohibit) blockers+=("${text/$'\t'/ }") ;;
      not | goto | nop) ;;
      fwmark | iif | oif | tos | dsfield | dscp | ipproto | sport | dport | uidrange | tun_id | realms | '[l3mdev-table]')
        not_covered+=("${text/$'\t'/ }")
        break
        ;;
    esac
  done
}

read_tables() {
  local line questions rules_seen=''
  default='' by_source='' not_covered=() blockers=()
  # The edges of the ranges that the kernel treats specially (multicast, for example).
  edges=([1]=1 [224 << 24]=1 [240 << 24]=1 [0xffffffff]=1)
  printf -v questions '\nroute show table all root %s' "${roots[@]}"
  look $'route show default\nrule show'"$questions" || cannot_prove
  split "$answer"
  for line in "${lines[@]}"; do
    case $line in
      [0-9]*:$'\t'*)
        rules_seen=yes
        read_rule "$line"
        ;;
      default*)
        if [[ $rules_seen ]]; then
          edge default
        elif [[ ! $default ]] && own_default "$line" && [[ $leads_out ]]; then
          default=$line
        fi
        ;;
      [0-9]*) edge "${line%% *}" ;;
      *)
        [[ $line == blackhole* || $line == unreachable* || $line == prohibit* ]] && blockers+=("$line")
        line=${line#* }
        edge "${line%% *}"
        ;;
    esac
  done
}

# --- lookups

lookup() { # questions, one a line -> answers; a refusal is '!' and the kernel's message
  local line refusal=''
  ask "$1" -force || cannot_prove
  split "$answer"
  answers=("${lines[@]}")
  [[ $answer == *'Command failed -:'* ]] || return 0
  answers=()
  for line in "${lines[@]}"; do
    case $line in
      'Command failed -:'*) answers+=("!$refusal") ;;
      'RTNETLINK answers: '*) refusal=${line#*: } ;;
      'Error: '* | 'Warning: '*) refusal=$line ;;
      *) answers+=("$line") ;;
    esac
  done
}

devices_of() { # a route as ip prints it -> devs, in order, each once
  local -i i
  # shellcheck disable=SC2206  # split at white space
  local words=($1)
  devs=()
  for ((i = 0; i < ${#words[@]}; i++)); do
    case ${words[i]} in
      dev)
        i+=1
        [[ " ${devs[*]-} " == *" ${words[i]} "* ]] || devs+=("${words[i]}")
        ;;
      # Their value may be one of these words.
      via | table | proto | scope | src | metric | weight | nhid | tos) i+=1 ;;
    esac
  done
}

declare -A permissions=()
is_allowed() {
  local pattern
  # The slash is for a device with the name @ or *.
  if [[ ! ${permissions["/$1"]-} ]]; then
    permissions["/$1"]=no
    for pattern in "${allowed[@]}"; do
      # shellcheck disable=SC2053  # it is a pattern
      [[ $1 == $pattern ]] && permissions["/$1"]=yes
    done
  fi
  [[ ${permissions["/$1"]} == yes ]]
}

declare -A verdicts=()
is_fine() { # an answer: are all its next hops allowed?
  # Without the destination, which does not matter here.
  local dev key=${1#* }
  [[ $1 == '!'* ]] && return 1
  if [[ ! ${verdicts[$key]-} ]]; then
    verdicts[$key]=bad
    devices_of "$1"
    ((${#devs[@]})) && verdicts[$key]=fine
    for dev in "${devs[@]}"; do
      is_allowed "$dev" || verdicts[$key]=bad
    done
  fi
  [[ ${verdicts[$key]} == fine ]]
}

# --- verdicts

conclude() { # marker, the other marker, lines for it, exit status, priority, verdict
  [[ -d $folder ]] || mkdir -p "$folder"
  printf '%s\n' "$3" >"$1" || tell 4 "$1 is out of date: it could not be written"
  [[ -e $2 ]] && rm -f "$2"
  tell_verdict "$told" "$5" "$6"
  exit "$4"
}

conclude_badly() { # lines for the marker, verdict
  if [[ $mode == STRICT ]]; then
    conclude "$detected" "$ok" "$1" 1 3 "$2"$'\n'"The mode is STRICT: units that wait for hostrouting-ready.service start \
once routing is right."
  fi
  conclude "$detected" "$ok" "$1" 0 4 "$2"
}

cannot_prove() {
  conclude_badly "the check itself failed: $answer" "cannot prove anything: $answer"
}

joined() { # words -> REPLY
  printf -v REPLY ', %s' "$@"
  REPLY=${REPLY#, }
}

# --- the check

# Cut the CIDRs: a part has its first address in starts, its last in ends and the number of its CIDR in cidr_of. Both
# the CIDRs and the edges are read once, because a sparse array has its indexes sorted.
cut_cidrs() {
  local -a begins=() highs=() points=("${!edges[@]}")
  local -i n=0 p=0 i j start
  local cidr
  for cidr in "${cidrs[@]}"; do
    bounds "$cidr"
    begins[low]+=" ${#highs[@]}"
    highs+=("$high")
  done
  for low in "${!begins[@]}"; do
    while ((p < ${#points[@]} && points[p] <= low)); do
      p+=1
    done
    for i in ${begins[low]}; do
      start=$low high=${highs[i]}
      for ((j = p; j < ${#points[@]} && points[j] <= high; j++)); do
        cidr_of[n]=$i starts[n]=$start ends[n]=$((points[j] - 1)) start=${points[j]} n+=1
      done
      cidr_of[n]=$i starts[n]=$start ends[n]=$high n+=1
    done
  done
}

declare -a cidr_of=() addresses=() starts=() ends=() plain=()

read_tables
if [[ ! $default ]] && ((waits)); then
  seconds=0 outcome=ok
  # static-routes.service has waited for it already; that time counts for this run only.
  if [[ -s $folder/static-routes.waited ]]; then
    read -r seconds outcome <"$folder/static-routes.waited"
    { : >"$folder/static-routes.waited"; } 2>/dev/null
    [[ $seconds == +([0-9]) && $outcome == ok ]] || seconds=$waits
  fi
  for (( ; seconds < waits; seconds++)); do
    wait_a_second
    read_tables
    [[ $default ]] && break
  done
fi

if [[ $default ]]; then
  devices_of "$default"
  expected=("${devs[@]}")
  for dev in "${expected[@]}"; do
    permissions["/$dev"]=yes
  done
  cut_cidrs
  for start in "${starts[@]}"; do
    dotted "$start"
    addresses+=("$REPLY")
  done
  printf -v questions 'route get fibmatch %s uid 0\n' "${addresses[@]}"
  lookup "${questions%$'\n'}"
  plain=("${answers[@]}")
  if ((${#plain[@]} != ${#addresses[@]})); then
    answer="ip gave ${#plain[@]} answers to ${#addresses[@]} questions; the last is: ${plain[*]: -1}"
    cannot_prove
  fi
  all_fine=yes
  for one in "${plain[@]}"; do
    [[ ${verdicts[${one#* }]-} == fine ]] || is_fine "$one" || { all_fine='' && break; }
  done
fi

notes=''
for line in "${not_covered[@]}"; do
  notes+=$'\n'"not covered by this proof, as it selects by more than addresses: rule ${line% }"
done

pass() {
  local cidrs_in_words verb=leave
  joined "${cidrs[@]}"
  cidrs_in_words=$REPLY
  joined "${expected[@]}"
  ((${#cidrs[@]} == 1)) && verb=leaves
  conclude "$ok" "$detected" "$cidrs_in_words $verb by $REPLY" 0 5 "$cidrs_in_words $verb by $REPLY$notes"
}

[[ $default && ! $by_source && $all_fine ]] && pass

# --- bash reads on if something is wrong, or if the source of a packet matters

# A rule that selects by source gets the source that the kernel chose after the answer without one. The second answer
# decides for a connected socket, the first for a datagram. Set sourced[part] to the first answer that is not fine.
ask_by_source() {
  local -i i
  local questions='' part dev source
  local -a parts=() asked=() words=()
  local -A seen=()
  for part in "${!plain[@]}"; do
    [[ ${plain[part]} == '!'* ]] && continue
    if [[ ${plain[part]} == *\\$'\t'* && ${plain[part]} != *' src '* ]]; then
      # A hash of the flow selects the next hop and so the source.
      devices_of "${plain[part]}"
    else
      devs=('')
    fi
    for dev in "${devs[@]}"; do
      parts+=("$part")
      questions+="route get ${addresses[part]}${dev:+ oif $dev} uid 0"$'\n'
    done
  done
  [[ $questions ]] || return 0
  lookup "${questions%$'\n'}"
  questions=''
  for i in "${!parts[@]}"; do
    part=${parts[i]} source=''
    # shellcheck disable=SC2206  # split at white space
    words=(${answers[i]})
    while ((${#words[@]} > 1)); do
      case ${words[0]} in
        src) source=${words[1]} && break ;;
        dev | via | table) words=("${words[@]:2}") ;;
        *) words=("${words[@]:1}") ;;
      esac
    done
    [[ ! $source || ${seen[$part $source]-} ]] && continue
    seen[$part $source]=yes
    asked+=("$part")
    questions+="route get fibmatch ${addresses[part]} from $source uid 0"$'\n'
  done
  [[ $questions ]] || return 0
  lookup "${questions%$'\n'}"
  for i in "${!asked[@]}"; do
    part=${asked[i]}
    [[ ${sourced[part]-} ]] || is_fine "${answers[i]}" || sourced[part]=${answers[i]}
  done
}

# --- findings

# Find the most specific route or rule that refuses an address: the kernel answers only with an error number.
blocker_of() { # address, the kernel's message -> REPLY
  local line word found='' size=$((1 << 33)) address=$1
  local -a words
  for line in ${blockers[@]+"${blockers[@]}"}; do
    # For an 'unreachable' rule, the kernel's message is that for 'no route'.
    [[ $2 == 'Network is unreachable' && $line != [0-9]*:*unreachable* ]] && continue
    # shellcheck disable=SC2206  # split at white space
    words=($line)
    word=${words[1]}
    [[ $line == [0-9]*:* ]] && word=0.0.0.0/0
    [[ $line == [0-9]*:*' to '* ]] && word=${line##*' to '} && word=${word%% *}
    bounds "$word"
    ((low <= address && address <= high && high - low < size)) && found=$line && size=$((high - low))
  done
  REPLY=${found%"${found##*[! ]}"}
}

report() { # number of the cidr, first, last, answer: adds a finding
  local kind first last by='' route=$4 cidr=${cidrs[$1]}
  case $4 in
    '!Network is unreachable') kind=no-route ;;
    '!'*) kind=blocked ;;
    'local '*) kind='local' ;;
    *) kind=overlap ;;
  esac
  if [[ $4 == '!'* ]]; then
    blocker_of "$2" "${4#!}"
    route=$REPLY
  else
    devices_of "$4"
    printf -v by ',%s' "${devs[@]}"
    by=" by ${by#,}"
    # A backslash and a tab precede each next hop.
    route=${route//\\$'\t'/}
    route=${route% }
  fi
  dotted "$2" && first=$REPLY
  dotted "$3" && last=$REPLY
  bad[$1]=yes
  # Sorted by CIDR, then by order of discovery. Appending to one text would copy it for each finding.
  findings[$1 << 32 | ${#findings[@]}]="$cidr: $kind $first-$last$by${route:+ ($route)}"
  if [[ $default && ($kind == no-route || $kind == overlap) && ${has_route[$cidr]-} ]]; then
    decided_by "$cidr" "$4" && [[ $4 != *" proto $protocol "* ]] && lost[$cidr]=yes
  fi
  [[ $kind == overlap ]] && suggest "$cidr" "$4"
}

decided_by() { # cidr, answer: succeed if the deciding route is no more specific than the CIDR
  local prefix=${2%% *}
  [[ $2 == '!'* || $prefix == default ]] || { [[ $prefix == */* ]] && ((${prefix#*/} <= ${1#*/})); }
}

suggest() { # cidr, the route that decides part of it: if that is less specific, suggest the whole CIDR
  local prefix=${2%% *} length=${1#*/} dev
  [[ ${lost[$1]-} ]] && return
  if [[ ! ${suggested[$1]-} && $gateway && $prefix == [0-9]*/* && $2 != *' table '* ]] && ((${prefix#*/} < length)); then
    suggested[$1]="{\"destination\": \"$1\", \"gateway\": \"$gateway\"$out}"
  fi
  devices_of "$2"
  for dev in "${devs[@]}"; do
    is_allowed "$dev" && continue
    dev=${dev//[!A-Za-z0-9_.@+-]/?}
    astray["/${dev/#-/?}"]=yes
  done
}

# Judge the parts; adjacent ones with the same answer are one finding.
judge() {
  local -i part first=0 last=0
  local new answer='' of=''
  for part in "${!addresses[@]}"; do
    new=${sourced[part]-}
    [[ $new ]] || is_fine "${plain[part]}" || new=${plain[part]}
    if [[ $new && $new == "$answer" && ${cidr_of[part]} == "$of" ]] && ((starts[part] == last + 1)); then
      last=${ends[part]}
      continue
    fi
    [[ $answer ]] && report "$of" "$first" "$last" "$answer"
    answer=$new
    [[ $new ]] && first=${starts[part]} last=${ends[part]} of=${cidr_of[part]}
  done
  [[ $answer ]] && report "$of" "$first" "$last" "$answer"
}

explain() { # -> REPLY
  local cidr i text
  if [[ ! $default ]]; then
    text="the node has no IPv4 default route, so nothing leads to ${cidrs[*]}"
    text+=$'\n'"Give it one: see the log of its DHCP client, or its network configuration."
  else
    joined "${expected[@]}"
    text="${#bad[@]} of ${#cidrs[@]} expected CIDRs would not leave by $REPLY as a whole:"
    printf -v REPLY '\n  %s' "${findings[@]}"
    text+=$REPLY
  fi
  if ((${#suggested[@]})); then
    joined "${suggested[@]}"
    text+=$'\n'"To fix it, add these routes to hostRouting in the agent's config, and apply it again:"
    text+=$'\n'"  \"staticRoutes\": {\"enabled\": true, \"routes\": [$REPLY]}"
    text+=$'\n'"Only a CIDR that the cluster alone uses is safe: the route redirects all traffic to its addresses."
  fi
  if ((${#lost[@]})); then
    joined "${!lost[@]}"
    text+=$'\n'"hostRouting has routes for $REPLY that are not in force: journalctl -b -u static-routes.service says why."
  fi
  for i in "${!bad[@]}"; do
    cidr=${cidrs[i]}
    [[ $default && ! ${suggested[$cidr]-} && ! ${lost[$cidr]-} ]] \
      && text+=$'\n'"$cidr: for a way to fix it, run \`hostrouting check CONFIG\`."
  done
  if ((${#astray[@]})); then
    printf -v REPLY ', "%s"' "${!astray[@]}"
    REPLY=${REPLY//\"\//\"}
    text+=$'\n'"If these devices are meant to carry the addresses, allow them instead:"
    text+=$'\n'"  \"routeOverlap\": {\"allowedDevs\": [${REPLY#, }]}"
  fi
  REPLY=$text
}

declare -A suggested=() astray=() lost=() has_route=()
for cidr in ${routed[@]+"${routed[@]}"}; do
  has_route[$cidr]=yes
done
declare -a findings=() bad=() sourced=()
gateway='' out=''
if [[ ! $default ]]; then
  for i in "${!cidrs[@]}"; do
    bounds "${cidrs[i]}"
    report "$i" "$low" "$high" '!Network is unreachable'
  done
else
  if [[ $default == default\ via\ [0-9]* ]]; then
    gateway=${default#default via } gateway=${gateway%% *}
    # A config has no device names with shell characters; without dev, apply looks it up.
    [[ ${expected[0]} == [!-]* && ${expected[0]} != *[!A-Za-z0-9_.@+-]* ]] && out=", \"dev\": \"${expected[0]}\""
  fi
  [[ $by_source ]] && ask_by_source
  judge
fi
((${#findings[@]})) || pass
explain
printf -v lines '%s\n' "${findings[@]}"
conclude_badly "${lines%$'\n'}" "$REPLY$notes"
