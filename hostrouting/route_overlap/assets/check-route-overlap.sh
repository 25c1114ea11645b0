#!/bin/bash
# Proves that every address of the expected CIDRs leaves by the interface of the default route, or by an allowed one.
#
# Written by hostrouting, and by the next `hostrouting apply` again: change hostRouting.routeOverlap in the agent's
# config instead. Needs bash and ip only. Which route decides an address can only change where a route or the selector
# of a policy rule begins or ends: the CIDRs are cut there, and the kernel is asked about one address of each part.
set -fu
export LC_ALL=C

mode=@MODE@
cidrs=(
  # @CIDRS@
)
# Patterns of device names.
allowed=(
  # @ALLOWED@
)
seconds_to_wait=30
folder=/run/aks-flex-node
detected=$folder/route-overlap.detected
ok=$folder/route-overlap.ok

# --- addresses: results in REPLY, or in low and high, for a subshell costs as much as all the rest

dotted() {
  printf -v REPLY '%d.%d.%d.%d' $(($1 >> 24)) $(($1 >> 16 & 255)) $(($1 >> 8 & 255)) $(($1 & 255))
}

bounds() { # of a CIDR, an address or 'default'
  local text=$1 length=32
  [[ $text == default ]] && text=0.0.0.0/0
  [[ $text == */* ]] && length=${text#*/}
  text=${text%/*}
  low=${text%%.*} text=${text#*.}
  low=$((low << 8 | ${text%%.*})) text=${text#*.}
  low=$(((low << 8 | ${text%.*}) << 8 | ${text#*.}))
  low=$((low & 0xffffffff << 32 - length & 0xffffffff))
  high=$((low + (1 << 32 - length) - 1))
}

# --- what the kernel holds: where answers can change

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

read_route() {
  local destination=${1#* }
  case $1 in
    [0-9]* | default*) destination=$1 ;;
    blackhole* | unreachable* | prohibit*) blockers+=("$1") ;;
  esac
  edge "${destination%% *}"
}

read_tables() {
  local line questions=$'route show default\nrule show' cidr rules_seen=''
  default='' by_source='' not_covered=() blockers=()
  # Where the kernel itself begins and ceases to treat addresses in a way of its own.
  edges=([1]=1 [127 << 24]=1 [128 << 24]=1 [224 << 24]=1 [(224 << 24) + 256]=1 [240 << 24]=1 [0xffffffff]=1)
  for cidr in "${cidrs[@]}"; do
    questions+=$'\n'"route show table all root $cidr"
  done
  while IFS= read -r line; do
    if [[ $line == [0-9]*:$'\t'* ]]; then
      rules_seen=yes
      read_rule "$line"
    elif [[ $rules_seen ]]; then
      read_route "$line"
    elif [[ ! $default && $line == default\ * && $line != default\ tos* ]]; then
      default=$line
    fi
  done < <(ip -4 -o -batch - <<<"$questions")
}

# --- asking

lookup() { # questions, one a line -> answers; a refusal is '!' and the kernel's words
  local line refusal=''
  answers=()
  while IFS= read -r line; do
    case $line in
      'Command failed -:'*) answers+=("!$refusal") ;;
      'RTNETLINK answers: '*) refusal=${line#*: } ;;
      'Error: '* | 'Warning: '*) refusal=$line ;;
      *) answers+=("${line%"${line##*[! ]}"}") ;;
    esac
  done < <(ip -4 -o -force -batch - <<<"$1" 2>&1)
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
      # A value may read like one of these words.
      via | table | proto | scope | src | metric | weight | nhid | tos) i+=1 ;;
    esac
  done
}

declare -A permissions=()
is_allowed() {
  local pattern
  if [[ ! ${permissions[$1]-} ]]; then
    permissions[$1]=no
    for pattern in "${allowed[@]}"; do
      # shellcheck disable=SC2053  # a pattern it is
      [[ $1 == $pattern ]] && permissions[$1]=yes
    done
  fi
  [[ ${permissions[$1]} == yes ]]
}

declare -A verdicts=()
is_fine() { # an answer: are all its next hops allowed?
  local dev
  if [[ ! ${verdicts[$1]-} ]]; then
    verdicts[$1]=bad
    if [[ $1 != '!'* ]]; then
      devices_of "$1"
      [[ ${devs[*]-} ]] && verdicts[$1]=fine
      for dev in ${devs[@]+"${devs[@]}"}; do
        is_allowed "$dev" || verdicts[$1]=bad
      done
    fi
  fi
  [[ ${verdicts[$1]} == fine ]]
}

# A rule that selects by source sees the source that the kernel chose by the answer without one: a connected socket goes
# by the second answer, a datagram by the first. Sets sourced[part] to the first answer that is not fine.
ask_by_source() {
  local -i i
  local questions='' part dev source
  local -a parts=() asked=() words=()
  local -A seen=()
  for part in "${!plain[@]}"; do
    [[ ${plain[part]} == '!'* ]] && continue
    if [[ ${plain[part]} == *\\* && ${plain[part]} != *' src '* ]]; then
      # Each flow's hash picks one of the next hops, and with it a source.
      devices_of "${plain[part]}"
    else
      devs=('')
    fi
    for dev in "${devs[@]}"; do
      parts+=("$part")
      questions+="route get ${addresses[part]}${dev:+ oif $dev}"$'\n'
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
    questions+="route get fibmatch ${addresses[part]} from $source"$'\n'
  done
  [[ $questions ]] || return 0
  lookup "${questions%$'\n'}"
  for i in "${!asked[@]}"; do
    part=${asked[i]}
    [[ ${sourced[part]-} ]] || is_fine "${answers[i]}" || sourced[part]=${answers[i]}
  done
}

# --- findings

# The most specific route or rule that refuses an address: the kernel answers with an error number only.
blocker_of() { # address, the kernel's words -> REPLY
  local line word found='' size=$((1 << 33)) address=$1
  local -a words
  for line in ${blockers[@]+"${blockers[@]}"}; do
    # Of a rule, 'unreachable' is answered with the words for 'no route'.
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

report() { # cidr, first, last, answer: adds a finding
  local kind first last by='' route=$4
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
    by=" by $(IFS=, && echo "${devs[*]}")"
    # Next hops come behind a backslash and a tab.
    route=${route//\\$'\t'/}
  fi
  dotted "$2" && first=$REPLY
  dotted "$3" && last=$REPLY
  findings+=("$1: $kind $first-$last$by${route:+ ($route)}")
  bad_cidrs[$1]=yes
  [[ $kind == overlap ]] && suggest "$1" "$4"
}

suggest() { # cidr, the route that decides part of it: the whole CIDR is safe to take where that is less specific
  local prefix=${2%% *} length=${1#*/} dev
  if [[ ! ${suggested[$1]-} && $gateway && $prefix == [0-9]*/* && $2 != *' table '* ]] && ((${prefix#*/} < length)); then
    suggested[$1]="{\"destination\": \"$1\", \"gateway\": \"$gateway\", \"dev\": \"$out\"}"
  fi
  devices_of "$2"
  for dev in "${devs[@]}"; do
    is_allowed "$dev" || astray[$dev]=yes
  done
}

conclude() { # marker, the other marker, lines
  [[ -d $folder ]] || mkdir -p "$folder"
  printf '%s\n' "${@:3}" >"$1"
  [[ -e $2 ]] && rm -f "$2"
  return 0
}

explain() {
  local cidr list='' by
  printf -v by ', %s' ${expected[@]+"${expected[@]}"}
  by=${by#, }
  if [[ ! $default ]]; then
    echo "the node has had no IPv4 default route for $seconds_to_wait s, so nothing leads to ${cidrs[*]}"
    echo "Give it one: see what its DHCP client or network configuration says of it."
  else
    echo "${#bad_cidrs[@]} of ${#cidrs[@]} expected CIDRs would not leave by $by as a whole:"
    printf '  %s\n' "${findings[@]}"
  fi
  for cidr in "${!suggested[@]}"; do
    list+=", ${suggested[$cidr]}"
  done
  if [[ $list ]]; then
    echo "To mend it, add these routes to hostRouting in the agent's config, and apply it again:"
    echo "  \"staticRoutes\": {\"enabled\": true, \"routes\": [${list#, }]}"
    echo "Only a CIDR that the cluster alone uses is safe: a route takes its addresses from whom they belong to now."
  fi
  for cidr in "${!bad_cidrs[@]}"; do
    [[ $default && ! ${suggested[$cidr]-} ]] && echo "$cidr: \`hostrouting check CONFIG\` says what would mend it."
  done
  list=''
  for cidr in "${!astray[@]}"; do
    list+=", \"$cidr\""
  done
  if [[ $list ]]; then
    echo "If these interfaces are meant to carry the addresses, allow them instead:"
    echo "  \"routeOverlap\": {\"allowedDevs\": [${list#, }]}"
  fi
  if [[ $mode == STRICT ]]; then
    echo "The mode is STRICT: what waits for hostrouting-ready.service starts once routing is right."
  fi
}

# --- the check

declare -A bad_cidrs=() suggested=() astray=()
declare -a findings=() cidr_of=() addresses=() starts=() ends=() plain=() sourced=() expected=()
gateway='' out=''

read_tables
until [[ $default ]] || ((SECONDS >= seconds_to_wait)); do
  sleep 1
  read_tables
done

if [[ ! $default ]]; then
  for cidr in "${cidrs[@]}"; do
    bounds "$cidr"
    report "$cidr" "$low" "$high" '!Network is unreachable'
  done
  conclude "$detected" "$ok" "${findings[@]}"
  explain
  [[ $mode == WARN ]]
  exit
fi

devices_of "$default"
expected=("${devs[@]}")
for dev in "${expected[@]}"; do
  permissions[$dev]=yes
done
if [[ $default == default\ via\ [0-9]* ]]; then
  gateway=${default#default via } gateway=${gateway%% *} out=${expected[0]}
fi

questions=''
for cidr in "${cidrs[@]}"; do
  bounds "$cidr"
  start=$low
  # A sparse array gives its indexes sorted.
  for point in "${!edges[@]}" $((high + 1)); do
    ((start < point && point <= high + 1)) || continue
    dotted "$start"
    questions+="route get fibmatch $REPLY"$'\n'
    addresses+=("$REPLY") starts+=("$start") ends+=($((point - 1))) cidr_of+=("$cidr")
    start=$point
  done
done
lookup "${questions%$'\n'}"
plain=("${answers[@]}")
[[ $by_source ]] && ask_by_source
if ((${#plain[@]} != ${#addresses[@]})); then
  echo "cannot prove anything: ip gave ${#plain[@]} answers to ${#addresses[@]} questions; the last is: ${plain[*]: -1}"
  conclude "$detected" "$ok" "the check itself failed: see the journal of check-route-overlap.service"
  [[ $mode == WARN ]]
  exit
fi

for line in ${not_covered[@]+"${not_covered[@]}"}; do
  echo "not covered by this proof, as it selects by more than addresses: rule $line"
done

first=0 last=0 answer='' of=''
for part in "${!addresses[@]}" end; do
  new=''
  if [[ $part != end ]]; then
    new=${sourced[part]-}
    # Most answers are like one before: that much without a call.
    [[ $new || ${verdicts[${plain[part]}]-} == fine ]] || is_fine "${plain[part]}" || new=${plain[part]}
    # Adjacent parts with the same answer are one finding.
    if [[ $new && $new == "$answer" && ${cidr_of[part]} == "$of" ]] && ((starts[part] == last + 1)); then
      last=${ends[part]}
      continue
    fi
  fi
  [[ $answer ]] && report "$of" "$first" "$last" "$answer"
  answer=$new
  [[ $new ]] && first=${starts[part]} last=${ends[part]} of=${cidr_of[part]}
done

if ((${#findings[@]} == 0)); then
  printf -v cidr ', %s' "${cidrs[@]}"
  printf -v dev ', %s' "${expected[@]}"
  verb=leave
  ((${#cidrs[@]} == 1)) && verb=leaves
  echo "${cidr#, } $verb by ${dev#, }"
  conclude "$ok" "$detected" "${cidr#, } $verb by ${dev#, }"
  exit 0
fi
conclude "$detected" "$ok" "${findings[@]}"
explain
[[ $mode == WARN ]]
