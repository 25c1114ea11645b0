#!/bin/bash -p
# Proves that every address of the expected CIDRs leaves by an expected device (that of the default route, unless the
# config names some) or by an allowed one, also when an announced fabric is connected.
#
#   check-route-overlap.sh [now]        now: do not wait for a default route
#
# Each `hostrouting apply` writes this file again: to change it, change hostRouting.routeOverlap in the agent's config.
# It needs only bash and ip. The deciding route can change only where a route or a selector of a policy rule begins or
# ends: the CIDRs are cut there, and the kernel is asked about one address of each part.
set -fu
export LC_ALL=C

mode=@MODE@
cidrs=(
  # @CIDRS@
)
# These contain all of them.
roots=(
  # @ROOTS@
)
# hostRouting.staticRoutes has routes for all addresses of these.
routed=(
  # @ROUTED@
)
# Patterns of device names.
allowed=(
  # @ALLOWED@
)
# Devices by which they must leave; none stands for those of the default route.
expected=(
  # @EXPECTED@
)
# What presets call the addresses that they expect.
declare -A names=(
  # @NAMES@
)
# @if list@
# Networks that will be connected.
fabric_networks=(
  # @NETWORKS@
)
# @end@

((${#cidrs[@]})) || exit 0

# @SHARED@
# @if auto@
# @AGENT@
# @end@

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
  rules+=("$text")
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
  default='' by_source='' rules=() not_covered=() blockers=()
  # The edges of the ranges that the kernel treats specially (multicast, for example).
  edges=([1]=1 [224 << 24]=1 [240 << 24]=1 [0xffffffff]=1)
  printf -v questions '\nroute show table all root %s' "${roots[@]}"
  # @if auto list@
  throws=()
  # @end@
  # @if auto@
  devices=()
  ((${#fabric_addresses[@]})) && questions+=$'\nlink show\naddr show'
  # @end@
  look $'route show default\nrule show'"$questions" || cannot_prove
  split "$answer"
  for line in "${lines[@]}"; do
    case $line in
      [0-9]*:$'\t'*)
        rules_seen=yes
        read_rule "$line"
        ;;
      # @if auto@
      [0-9]*': '*) devices+=("$line") ;; # a device, or an address with its device
      # @end@
      default*)
        if [[ $rules_seen ]]; then
          edge default
        elif [[ ! $default ]] && own_default "$line" && leads_out_as_expected; then
          default=$line
        fi
        ;;
      [0-9]*) edge "${line%% *}" ;;
      *)
        [[ $line == blackhole* || $line == unreachable* || $line == prohibit* ]] && blockers+=("$line")
        # @if auto list@
        [[ $line == throw* ]] && throws+=("$line")
        # @end@
        line=${line#* }
        edge "${line%% *}"
        ;;
    esac
  done
}

leads_out_as_expected() { # after own_default
  local i
  ((${#expected[@]})) || { [[ $leads_out ]] && return; }
  for i in "${!hop_dev[@]}"; do
    [[ ! ${hop_dead[i]} && " ${expected[*]-} " == *" ${hop_dev[i]} "* ]] && return
  done
  return 1
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

devices_of() { # a route as ip prints it -> devs, in order, each once; and those without carrier in linkdown
  local -i i
  local dev=''
  # shellcheck disable=SC2206  # split at white space
  local words=($1)
  devs=() linkdown=' '
  for ((i = 0; i < ${#words[@]}; i++)); do
    case ${words[i]} in
      dev)
        i+=1
        dev=${words[i]}
        [[ " ${devs[*]-} " == *" $dev "* ]] || devs+=("$dev")
        ;;
      linkdown) linkdown+="$dev " ;;
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
      is_allowed "$dev" && ! is_dead_end "$dev" || verdicts[$key]=bad
    done
  fi
  [[ ${verdicts[$key]} == fine ]]
}

is_dead_end() { # a device, after devices_of: is it an expected one without carrier?
  [[ $linkdown == *" $1 "* && " ${expected[*]} " == *" $1 "* ]]
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

# --- the fabric: networks that will be connected, in announced; with their devices and their own addresses

declare -a announced=() announced_devs=() announced_own=() fates=()
fabric_notes=() fabric_source=''

# @if auto list@
declare -a announced_low=() announced_high=() announced_at=()
# The first device of a network by its index, and of an own address by its number: the first one that is added decides.
declare -A first_of=() first_with=() announced_index=()
wide_routes_read=''
# @end@
# @if list@
assume_fabric() {
  local network
  fabric_source=routeOverlap.fabric
  for network in "${fabric_networks[@]}"; do
    bounds "$network"
    announce "$low" "${network#*/}" '' ''
  done
}
# @end@
# @if auto@
assume_fabric() {
  ((${#fabric_addresses[@]})) || return 0
  local line device i own address
  local -a words
  local -A mac_of=() own_of=() is_up=()
  for line in "${devices[@]}"; do
    # shellcheck disable=SC2206  # split at white space
    words=($line)
    device=${words[1]%:} device=${device%@*}
    if [[ ${words[2]} == inet ]]; then
      own=${words[3]}
      [[ ${words[4]} == peer ]] && own=${words[5]}
      own_of["/$device"]+=" $own"
      continue
    fi
    [[ ${words[2]} == *[\<,]UP[,\>]* ]] && is_up["/$device"]=yes
    own=${line#*' link/'} own=${own#* }
    agent_mac "$device" "${own%% *}"
    [[ $REPLY ]] && mac_of[$REPLY]=$device
  done
  for i in "${!fabric_addresses[@]}"; do
    device=''
    [[ ${fabric_macs[i]} ]] && device=${mac_of[${fabric_macs[i]}]-}
    own=''
    [[ $device ]] && own=${own_of["/$device"]-}
    dotted "${fabric_addresses[i]}"
    [[ "$own " == *" $REPLY/16 "* ]] \
      || announce "$((fabric_addresses[i] & 0xffff0000))" 16 "$device" "${fabric_addresses[i]}"
    [[ ! $own || ${is_up["/$device"]-} ]] && continue
    # The agent sets it up, with the addresses that it has.
    for own in $own; do
      bounds "${own%/*}" && address=$low
      bounds "$own"
      announce "$low" "${own#*/}" "$device" "$address"
    done
  done
}
# @end@

# @if auto list@
announce() { # network, length, device (empty if it is not there yet), its own address there (empty if not known)
  local address i high=$(($1 | 0xffffffff >> $2))
  i=${announced_index["$1/$2"]-}
  if [[ ! $i ]]; then
    i=${#announced[@]}
    dotted "$1"
    announced[i]=$REPLY/$2 announced_index["$1/$2"]=$i first_of[$i]=/$3
    announced_low[i]=$1 announced_high[i]=$high announced_devs[i]='' announced_own[i]=''
    edges[$1]=1 edges[high + 1]=1
  fi
  [[ $3 && "${announced_devs[i]} " != *" $3 "* ]] && announced_devs[i]+=" $3"
  (($2 < 31)) || high=''
  for address in $4 $high; do
    announced_own[i]+=" $address"
    edges[address]=1 edges[address + 1]=1
    [[ ${first_with[$address]-} ]] || first_with[$address]=/$3
  done
}

# Set fates[part] to the announced network that will decide it.
find_announced() {
  local part i
  for part in "${!starts[@]}"; do
    for i in "${!announced[@]}"; do
      ((announced_low[i] <= starts[part] && starts[part] <= announced_high[i])) || continue
      announced_at[part]=$i
      will_decide "$i" "${starts[part]}" 0 "${plain[part]}" && fate_of "$i" "${starts[part]}" && fates[part]=$REPLY all_fine=''
      break
    done
  done
}

fate_of() { # announced network that decides, address -> REPLY: the network, or `fine` if its device is allowed
  local dev=${first_with[$2]-${first_of[$1]}}
  REPLY=$1
  [[ $dev != / ]] && is_allowed "${dev#/}" && REPLY=fine
  return 0
}

will_decide() { # announced network, address, source, today's answer: will the network decide instead?
  local length=${announced[$1]#*/} table=main prefix=0 metric=0 word
  local -a words
  if [[ "${announced_own[$1]} " == *" $2 "* ]]; then
    # Another such route for this very address stays in front.
    parse_route "$4"
    [[ $kind != @(local|broadcast) || $destination == */* ]]
    return
  fi
  if [[ $4 == '!'* ]]; then
    table=''
  else
    parse_route "$4"
    prefix=32
    [[ $destination == default ]] && prefix=0
    [[ $destination == */* ]] && prefix=${destination#*/}
    [[ $elsewhere == *' table '* ]] && table=${elsewhere#*' table '} && table=${table%% *}
    if [[ $table == main ]]; then
      ((prefix < length || (prefix == length && metric > 0)))
      return
    fi
  fi
  network_precedes "$length" "$2" "$3" "$table" "$prefix"
}

# Succeed if the rules find an announced network in main before today's route in `table`; empty for a refusal.
network_precedes() { # length of the network, address, source, table, prefix length
  [[ $wide_routes_read ]] || read_wide_routes
  local rule wanted='' matches inverted action value suppressed i
  local -a words
  for rule in "${rules[@]}"; do
    # shellcheck disable=SC2206  # split at white space
    words=($rule)
    [[ $wanted && ${words[0]} != "$wanted:" ]] && continue
    wanted='' matches=yes inverted='' action='' value='' suppressed=-1
    for ((i = 1; i < ${#words[@]}; i++)); do
      case ${words[i]} in
        not) inverted=yes ;;
        from | to)
          i=$((i + 1))
          [[ ${words[i]} == all ]] && continue
          bounds "${words[i]}"
          if [[ ${words[i - 1]} == to ]]; then
            ((low <= $2 && $2 <= high)) || matches=''
          else
            ((low <= $3 && $3 <= high)) || matches=''
          fi
          ;;
        iif) i=$((i + 1)) && [[ ${words[i]} == lo ]] || matches='' ;;
        ipproto) i=$((i + 1)) && [[ ${words[i]} == udp ]] || matches='' ;;
        uidrange) i=$((i + 1)) && [[ ${words[i]} == 0-* ]] || matches='' ;;
        fwmark | oif | tos | dsfield | dscp | sport | dport | tun_id) i=$((i + 1)) matches='' ;;
        suppress_prefixlength) i=$((i + 1)) suppressed=${words[i]} ;;
        lookup | goto) i=$((i + 1)) action=${words[i - 1]} value=${words[i]} ;;
        blackhole | unreachable | prohibit | nop) action=${words[i]} ;;
        '[l3mdev-table]') matches='' ;;
      esac
    done
    [[ $value == '[l3mdev-table]' ]] && matches=''
    # A rule acts on a packet that it selects, and with `not` on the others.
    [[ $matches == "$inverted" ]] && continue
    case $action in
      goto) [[ " ${rules[*]} " == *" $value:"* || "${rules[*]}" == "$value:"* ]] && wanted=$value ;;
      nop) ;;
      lookup)
        if [[ $value == main ]]; then
          covered_by "$2" "$1" main throws && continue
          [[ ! $4 ]] && covered_by "$2" "$1" main blockers && return 1
          (($1 > suppressed)) && return 0
        elif [[ $value == "$4" ]]; then
          (($5 > suppressed)) && return 1
        elif [[ ! $4 ]]; then
          covered_by "$2" -1 "$value" blockers && return 1
        fi
        ;;
      *) return 1 ;;
    esac
  done
  return 1
}

# Routes that are wider than a root, of which the tables were read inside only.
read_wide_routes() {
  local line questions lines
  printf -v questions '\nroute show table all match %s' "${roots[@]}"
  look "${questions#$'\n'}" || cannot_prove
  split "$answer"
  for line in "${lines[@]}"; do
    case $line in
      blackhole* | unreachable* | prohibit*) blockers+=("$line") ;;
      throw*) throws+=("$line") ;;
    esac
  done
  wide_routes_read=yes
}

covered_by() { # address, a prefix length, table, name of a list of routes: does one with a longer prefix cover it?
  local -n routes=$4
  local route own_length
  for route in ${routes[@]+"${routes[@]}"}; do
    [[ $route == [0-9]*:* ]] && continue # a rule
    parse_route "$route"
    [[ $3 == main && $elsewhere == *' table '* || $3 != main && "$elsewhere " != *" table $3 "* ]] && continue
    bounds "$destination"
    own_length=32
    [[ $destination == default ]] && own_length=0
    [[ $destination == */* ]] && own_length=${destination#*/}
    ((low <= $1 && $1 <= high && (own_length > $2 || (own_length == $2 && metric == 0)))) && return 0
  done
  return 1
}

# @end@
# @if auto@
is_booting() {
  local up=''
  # The first check of a boot waits, and not each start of a gated unit after it.
  [[ -e $ok || -e $detected ]] && return 1
  [[ -r $fabric_uptime ]] && IFS=. read -r up _ <"$fabric_uptime"
  # Later, addresses that are still missing in the pool are hardly under way.
  [[ $up == +([0-9]) ]] && ((up < 300))
}

has_infiniband() {
  compgen -G '/sys/class/infiniband/*' >/dev/null && return
  look 'link show' && [[ $answer == *' link/infiniband '* ]]
}
# @end@

# --- the check

may_wait() { # count a second
  local outcome=ok
  if [[ ! $seconds ]]; then
    seconds=0
    # static-routes.service has waited for the default route already; that time counts for this run only.
    if ((waits)) && [[ -s $folder/static-routes.waited ]]; then
      read -r seconds outcome <"$folder/static-routes.waited"
      { : >"$folder/static-routes.waited"; } 2>/dev/null
      [[ $seconds == +([0-9]) && $outcome == ok ]] || seconds=$waits
    fi
  fi
  ((seconds++ < waits))
}

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

read_node() {
  # @if auto@
  read_fabric
  # @end@
  read_tables
}

seconds=''
read_node
until [[ $default ]] || ! may_wait; do
  wait_a_second
  read_node
done
# @if auto@
if [[ $fabric_awaited ]] && has_infiniband; then
  while [[ $fabric_awaited ]] && is_booting && may_wait; do
    wait_a_second
    read_node
  done
  [[ $fabric_awaited ]] && fabric_notes=("warning: ${fabric_notes[0]}")
fi
[[ $fabric_on ]] || fabric_notes=()
# @end@

if [[ $default && ${#expected[@]} == 0 ]]; then
  devices_of "$default"
  expected=("${devs[@]}")
fi
if ((${#expected[@]})); then
  for dev in "${expected[@]}"; do
    permissions["/$dev"]=yes
  done
  # @if auto list@
  assume_fabric
  # @end@
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
    [[ ${verdicts[${one#* }]-} == fine ]] || is_fine "$one" || all_fine=''
  done
  # @if auto list@
  ((${#announced[@]})) && find_announced
  # @end@
fi

notes=''
for line in ${fabric_notes[@]+"${fabric_notes[@]}"}; do
  notes+=$'\n'"$line"
done
for line in "${not_covered[@]}"; do
  notes+=$'\n'"not covered by this proof, as it selects by more than addresses: rule ${line% }"
done

carriers_of() { # answers that are fine -> devs: the expected ones first, then the others in their order
  local -A seen=()
  local answer dev
  local -a carriers=() others=()
  for answer in "$@"; do
    [[ ${verdicts[$answer]} == fine ]] || continue
    devices_of "- $answer"
    for dev in "${devs[@]}"; do
      seen["/$dev"]=yes
    done
  done
  for dev in "${expected[@]}"; do
    [[ ${seen["/$dev"]-} ]] && carriers+=("$dev") && unset "seen[/$dev]"
  done
  for dev in "${!seen[@]}"; do
    others+=("${dev#/}")
  done
  sort_words ${others[@]+"${others[@]}"}
  devs=(${carriers[@]+"${carriers[@]}"} ${words[@]+"${words[@]}"})
}

sort_words() { # -> words
  local -i i
  local word
  words=()
  for word in "$@"; do
    for ((i = ${#words[@]}; i > 0; i--)); do
      [[ ${words[i - 1]} < "$word" ]] && break
      words[i]=${words[i - 1]}
    done
    words[i]=$word
  done
}

pass() {
  local cidrs_in_words verb=leave words
  joined "${cidrs[@]}"
  cidrs_in_words=$REPLY
  carriers_of "${!verdicts[@]}"
  joined "${devs[@]}"
  ((${#cidrs[@]} == 1)) && verb=leaves
  conclude "$ok" "$detected" "$cidrs_in_words $verb by $REPLY" 0 5 "$cidrs_in_words $verb by $REPLY$notes"
}

[[ ${#expected[@]} != 0 && ! $by_source && $all_fine ]] && pass

# --- bash reads on if something is wrong, or if the source of a packet matters

# A rule that selects by source gets the source that the kernel chose after the answer without one. The second answer
# decides for a connected socket, the first for a datagram. Set sourced[part] to the first answer that is not fine.
ask_by_source() {
  local -i i
  local questions='' part dev source
  local -a parts=() asked=() with_source=() words=()
  local -A seen=()
  for part in "${!plain[@]}"; do
    [[ ${plain[part]} == '!'* || ${fates[part]-} ]] && continue
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
    with_source+=("$source")
    questions+="route get fibmatch ${addresses[part]} from $source uid 0"$'\n'
  done
  [[ $questions ]] || return 0
  lookup "${questions%$'\n'}"
  for i in "${!asked[@]}"; do
    part=${asked[i]}
    [[ ${sourced[part]-} ]] || is_fine "${answers[i]}" || sourced[part]=${answers[i]}
    # @if auto list@
    [[ ${announced_at[part]-} ]] && will_decide "${announced_at[part]}" "${starts[part]}" "${with_source[i]}" "${answers[i]}" \
      && fate_of "${announced_at[part]}" "${starts[part]}" && fates[part]=$REPLY
    # @end@
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
    'announced '*) kind=announced ;;
    *) kind=overlap ;;
  esac
  if [[ $4 == '!'* ]]; then
    blocker_of "$2" "${4#!}"
    route=$REPLY
  elif [[ $kind == announced ]]; then
    by=${announced_devs[${4#* }]// /,} route="${announced[${4#* }]}, announced by $fabric_source"
    by=${by:+ by ${by#,}}
    for REPLY in ${announced_own[${4#* }]}; do
      (($2 <= REPLY && REPLY <= $3)) && dotted "$REPLY" && own["/$REPLY"]=yes
    done
  else
    devices_of "$4"
    printf -v by ',%s' "${devs[@]}"
    by=" by ${by#,}"
    [[ $kind == overlap ]] && only_dead_ends && kind='dead-end'
    # A backslash and a tab precede each next hop.
    route=${route//\\$'\t'/}
    route=${route% }
  fi
  dotted "$2" && first=$REPLY
  dotted "$3" && last=$REPLY
  bad[$1]=yes
  # Sorted by CIDR, then by order of discovery. Appending to one text would copy it for each finding.
  findings[$1 << 32 | ${#findings[@]}]="$cidr${names[$cidr]:+ (${names[$cidr]})}: $kind $first-$last$by${route:+ ($route)}"
  if [[ $default && ($kind == no-route || $kind == overlap || $kind == announced) && ${has_route[$cidr]-} ]]; then
    decided_by "$cidr" "$4" && [[ $4 != *" proto $protocol "* ]] && lost[$cidr]=yes
  fi
  [[ $kind == dead-end ]] && dead["/$dev"]=yes
  [[ $kind == overlap || $kind == announced ]] && suggest "$cidr" "$4"
}

only_dead_ends() { # of devs -> dev
  for dev in "${devs[@]}"; do
    is_allowed "$dev" || return
  done
  for dev in "${devs[@]}"; do
    is_dead_end "$dev" && return
  done
}

decided_by() { # cidr, answer: succeed if the deciding route is no more specific than the CIDR
  local prefix=${2%% *}
  [[ $prefix == announced ]] && prefix=${announced[${2#* }]}
  [[ $2 == '!'* || $prefix == default ]] || { [[ $prefix == */* ]] && ((${prefix#*/} <= ${1#*/})); }
}

suggest() { # cidr, the route that decides part of it: if that is less specific, suggest the whole CIDR
  local prefix=${2%% *} length=${1#*/} dev
  [[ ${lost[$1]-} ]] && return
  [[ $prefix == announced ]] && prefix=${announced[${2#* }]}
  if [[ ! ${suggested[$1]-} && $gateway && $prefix == [0-9]*/* && $2 != *' table '* ]] && ((${prefix#*/} < length)); then
    suggested[$1]="{\"destination\": \"$1\", \"gateway\": \"$gateway\"$out}"
  fi
  if [[ $2 == 'announced '* ]]; then
    IFS=' ' read -ra devs <<<"${announced_devs[${2#* }]}"
  else
    devices_of "$2"
  fi
  for dev in ${devs[@]+"${devs[@]}"}; do
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
    [[ ${fates[part]-} ]] && new="announced ${fates[part]}"
    [[ $new ]] || is_fine "${plain[part]}" || new=${plain[part]}
    [[ $new == 'announced fine' ]] && new=''
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
  if ((!${#expected[@]})); then
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
    [[ ${#expected[@]} != 0 && ! ${suggested[$cidr]-} && ! ${lost[$cidr]-} ]] \
      && text+=$'\n'"$cidr: for a way to fix it, run \`hostrouting check CONFIG\`."
  done
  if ((${#dead[@]})); then
    joined "${!dead[@]}"
    text+=$'\n'"${REPLY//\//} has no carrier: see its cable, its switch and its driver (ip link show)."
  fi
  if ((${#own[@]})); then
    joined "${!own[@]}"
    text+=$'\n'"No route takes ${REPLY//\//} from the fabric, whose own and broadcast addresses they will be: narrow expectedCidrs."
  fi
  if ((${#astray[@]})); then
    printf -v REPLY ', "%s"' "${!astray[@]}"
    REPLY=${REPLY//\"\//\"}
    text+=$'\n'"If these devices are meant to carry the addresses, allow them instead:"
    text+=$'\n'"  \"routeOverlap\": {\"allowedDevs\": [${REPLY#, }]}"
  fi
  REPLY=$text
}

declare -A suggested=() astray=() lost=() own=() dead=() has_route=()
for cidr in ${routed[@]+"${routed[@]}"}; do
  has_route[$cidr]=yes
done
declare -a findings=() bad=() sourced=()
gateway='' out=''
if ((!${#expected[@]})); then
  for i in "${!cidrs[@]}"; do
    bounds "${cidrs[i]}"
    report "$i" "$low" "$high" '!Network is unreachable'
  done
else
  if [[ $default == default\ via\ [0-9]* ]]; then
    gateway=${default#default via } gateway=${gateway%% *}
    # A config has no device names with shell characters; without dev, apply looks it up.
    devices_of "$default"
    [[ ${devs[0]} == [!-]* && ${devs[0]} != *[!A-Za-z0-9_.@+-]* ]] && out=", \"dev\": \"${devs[0]}\""
    is_dead_end "${devs[0]}" && gateway=''
  fi
  [[ $by_source ]] && ask_by_source
  # @if auto@
  ((${#fates[@]})) && date_fabric_source
  # @end@
  judge
fi
((${#findings[@]})) || pass
explain
printf -v lines '%s\n' "${findings[@]}"
conclude_badly "${lines%$'\n'}" "$REPLY$notes"
