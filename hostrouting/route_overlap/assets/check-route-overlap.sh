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
# The names that presets give to the addresses that they expect.
declare -A names=(
  # @NAMES@
)
# @if auto list@
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
      lookup)
        [[ ${words[i + 1]-} == '[l3mdev-table]' ]] && not_covered+=("${text/$'\t'/ }")
        break
        ;;
      blackhole | unreachable | prohibit) blockers+=("${text/$'\t'/ }") ;;
      not | goto | nop) ;;
      fwmark | iif | oif | tos | dsfield | dscp | ipproto | sport | dport | uidrange | tun_id | realms)
        not_covered+=("${text/$'\t'/ }")
        break
        ;;
    esac
  done
}

read_tables() {
  local line questions rules_seen=''
  default='' by_source='' rules=() not_covered=() blockers=() routes=()
  # The edges of the ranges that the kernel treats specially (multicast, for example).
  edges=([1]=1 [224 << 24]=1 [240 << 24]=1 [0xffffffff]=1)
  printf -v questions '\nroute show table all root %s' "${roots[@]}"
  # @if auto list@
  devices=()
  if ((${#fabric_networks[@]} + ${#fabric_addresses[@]})); then
    # The devices, and the routes around the roots.
    printf -v REPLY '\nroute show table all match %s' "${roots[@]}"
    questions+=$'\nroute show table local exact 127.0.0.0\nlink show type vrf\nlink show\naddr show'$REPLY
  fi
  # @end@
  look $'route show default\nrule show'"$questions" || cannot_prove
  split "$answer"
  for line in "${lines[@]}"; do
    case $line in
      [0-9]*:$'\t'*)
        rules_seen=yes
        read_rule "$line"
        ;;
      # @if auto list@
      [0-9]*': '*) devices+=("$line") ;; # a device, or an address with its device
      # @end@
      default*)
        if [[ $rules_seen ]]; then
          edge default
          routes+=("$line")
        elif [[ ! $default ]] && own_default "$line" && leads_out_as_expected; then
          default=$line
        fi
        ;;
      [0-9]*)
        edge "${line%% *}"
        routes+=("$line")
        ;;
      *)
        routes+=("$line")
        [[ $line == blackhole* || $line == unreachable* || $line == prohibit* ]] && blockers+=("$line")
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

devices_of() { # a route as ip prints it -> devs, in order, each once; linkdown: without carrier; passed_over: dead
  local -i i
  local dev=''
  # shellcheck disable=SC2206  # split at white space
  local words=($1)
  devs=() linkdown=' ' passed_over=' '
  for ((i = 0; i < ${#words[@]}; i++)); do
    case ${words[i]} in
      dev)
        i+=1
        dev=${words[i]}
        [[ " ${devs[*]-} " == *" $dev "* ]] || devs+=("$dev")
        ;;
      # The kernel sends nothing by it.
      dead)
        passed_over+="$dev "
        [[ ${words[i + 1]-} == linkdown ]] && i+=1
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

# --- the fabric: networks that will be connected, with the present devices in them, and own and broadcast addresses

declare -a announced=() announced_devs=() announced_own=()
fabric_notes=() fabric_source=''
# @if list@
fabric_source=routeOverlap.fabric
# @end@
# @if auto list@
fabric_addresses=()
kernels_rules=$'0:\tfrom all lookup local 32766:\tfrom all lookup main 32767:\tfrom all lookup default'
# Routes by table, network and prefix length, as ip prints them. In the tables +local and +main are the announced ones:
# the number of the network after a plus, its device after a slash, and the source; both are empty if not known.
declare -A held=()
# All prefix lengths of these, the longest first.
declare -a lengths=()
# The groups of devices, by which rules suppress routes.
declare -A group_of=()
# Must rules and routes be gone through as the kernel does, because more than the longest prefix decides? And does it
# search the tables local and main as one?
must_walk='' merged=''
# Is the first address of a network a broadcast address, too, as before Linux 5.14? Then that of 127.0.0.0/8 is one.
with_first=''

assume_fabric() {
  local line
  local -a root_lows=() root_highs=()
  local -A mac_of=() own_of=() is_up=() master_of=() is_vrf=()
  ((${#fabric_networks[@]} + ${#fabric_addresses[@]})) || return
  for REPLY in "${roots[@]}"; do
    bounds "$REPLY"
    root_lows+=("$low") root_highs+=("$high")
  done
  read_devices
  [[ ${rules[*]% } == "$kernels_rules" ]] || must_walk=yes
  for line in "${routes[@]}"; do
    [[ $line == @(blackhole|unreachable|prohibit|throw)* || $line == *' table local '*' metric '* ]] && must_walk=yes
    [[ $line == 'broadcast 127.0.0.0 '* ]] && with_first=yes
  done
  for REPLY in ${fabric_networks[@]+"${fabric_networks[@]}"}; do
    announce "$REPLY" ''
  done
  announce_addresses
  if [[ $must_walk ]]; then
    hold_routes
    [[ ${rules[*]% } == "$kernels_rules" ]] && find_merged
  fi
}

# The kernel parts the tables for good when a rule is added, and then names the table of an own address.
find_merged() {
  local words=(${own_of[@]+${own_of[@]}})
  merged=yes
  ((${#words[@]})) || return
  lookup "route get fibmatch ${words[0]%%[/=]*} uid 0"
  [[ ${answers[*]} == *' table local '* ]] && merged=''
}

read_devices() { # -> mac_of, own_of, is_up, master_of, is_vrf, group_of
  local line device own
  for line in "${devices[@]}"; do
    device=${line#*: } device=${device%%[: ]*} device=${device%@*}
    case $line in
      [0-9]*': '*' link/'*)
        # VRFs are shown before all devices, and so twice.
        [[ ${group_of["/$device"]-} ]] && is_vrf["/$device"]=yes
        [[ $line == *[\<,]UP[,\>]* ]] && is_up["/$device"]=yes
        own=${line%%' link/'*}
        [[ $own == *' master '* ]] && master_of["/$device"]=${own#*' master '}
        own=${own##*' group '}
        group_of["/$device"]=${own%%[ \\]*}
        # @end@
        # @if auto@
        own=${line#*' link/'} own=${own#* }
        agent_mac "$device" "${own%% *}"
        [[ $REPLY ]] && mac_of[$REPLY]+=" $device"
        # @end@
        # @if auto list@
        ;;
      [0-9]*': '*' inet '*)
        own=${line#*' inet '}
        [[ $line == *' peer '* ]] && own=${own%% *}=${own#*' peer '}
        own_of["/$device"]+=" ${own%% *}"
        ;;
    esac
  done
}

announce_addresses() { # as the agent adds them
  local i device address own primary text pair
  local -a pairs=() allowed_pairs=()
  # Of several devices in one network the first one decides. Their order is not known: allowed ones come last.
  for i in ${fabric_addresses[@]+"${!fabric_addresses[@]}"}; do
    devs=()
    # shellcheck disable=SC2206 # Split at blanks.
    [[ ${fabric_macs[i]} ]] && devs=(${mac_of[${fabric_macs[i]}]-})
    for device in "${devs[@]-}"; do
      # An address of a VRF brings routes to the table of that VRF alone.
      REPLY=${master_of["/$device"]-$device}
      [[ ${is_vrf["/${REPLY%% *}"]-} ]] && continue
      if [[ $device ]] && is_allowed "$device"; then
        allowed_pairs+=("$i/$device")
      else
        pairs+=("$i/$device")
      fi
    done
  done
  for pair in ${pairs[@]+"${pairs[@]}"} ${allowed_pairs[@]+"${allowed_pairs[@]}"}; do
    device=${pair#*/} address=${fabric_addresses[${pair%%/*}]} primary=''
    dotted "$address"
    text=$REPLY/16
    if [[ $device ]]; then
      for own in ${own_of["/$device"]-}; do
        if [[ ! ${is_up["/$device"]-} ]]; then
          # The agent sets the device up, with the addresses that it has.
          bounds "${own%%[/=]*}"
          announce "${own#*=}" "$device" "$low"
        fi
        bounds "${own#*=}"
        if [[ ! $primary && $own == */16 ]] && ((low == (address & 0xffff0000))); then
          bounds "${own%%[/=]*}"
          primary=$low
        fi
      done
      is_up["/$device"]=yes
      own_of["/$device"]+=" $text"
    fi
    if [[ $primary == "$address" ]]; then
      # It is there already and brings no route, be its network connected or not.
      name_network "$text" "$device"
    else
      announce "$text" "$device" "${primary:-$address}" "$address"
    fi
  done
}

announce() { # address/length, device (empty if it is not there yet), source (empty if not known), own address if it is new
  local -i i
  local length=${1#*/} source=${3-} own=${4-}
  name_network "$1" "$2" || return 0
  # A second address in a network brings no route to it, and one in 0.0.0.0/8 none at all.
  if [[ (! $own || $own == "$source") && "$length $source" != "32 $low" ]] && ((low >> 24)); then
    hold_announced "+main $low/$length" "+$i/$2 $source"
    ((length < 31)) && own+="${with_first:+ $low} $high"
    ((length == 32)) && must_walk=yes
  fi
  edges[low]=1 edges[high + 1]=1
  for own in $own; do
    hold_announced "+local $own/32" "+$i/$2 $source"
    [[ "${announced_own[i]} " == *" $own "* ]] || announced_own[i]+=" $own"
    edges[own]=1 edges[own + 1]=1
  done
}

# Give the network of an address its number, and the device to its number. Fail if it does not matter here.
name_network() { # address/length, device (may be empty) -> i, low, high
  bounds "$1"
  meets_roots || return
  dotted "$low"
  for ((i = 0; i < ${#announced[@]}; i++)); do
    [[ ${announced[i]} == "$REPLY/${1#*/}" ]] && break
  done
  announced[i]=$REPLY/${1#*/} announced_devs[i]=${announced_devs[i]-} announced_own[i]=${announced_own[i]-}
  [[ $2 && "${announced_devs[i]} " != *" $2 "* ]] && announced_devs[i]+=" $2"
  return 0
}

# Of the others, only the source of a packet may matter.
meets_roots() { # low, high
  local -i i
  for i in "${!root_lows[@]}"; do
    ((low <= root_highs[i] && root_lows[i] <= high)) && return
  done
  [[ $by_source ]]
}

hold_announced() { # place, route: of several devices the first decides
  [[ ${held[$1]-} ]] || held[$1]=$2
  lengths[32 - ${1#*/}]=${1#*/}
}

# Add the routes of the node, and announced ones where no route of metric 0 precedes them.
hold_routes() {
  local line place table prefix
  for place in "${!held[@]}"; do
    held[${place#+}]=${held[$place]}
  done
  for line in "${routes[@]}"; do
    parse_route "$line"
    [[ $elsewhere == *' tos '* ]] && continue
    table=main
    [[ $elsewhere == *' table '* ]] && table=${elsewhere#*' table '}
    bounds "$destination"
    prefix_length
    place="$table $low/$prefix"
    lengths[32 - prefix]=$prefix
    [[ ! ${held[$place]-} || (${held[$place]} == +* && $metric == 0) ]] && held[$place]=$line
  done
}

prefix_length() { # of destination -> prefix
  prefix=32
  [[ $destination == default ]] && prefix=0
  [[ $destination == */* ]] && prefix=${destination#*/}
}

search() { # table, address -> REPLY: the route of the longest prefix, and length
  local table tables=$1
  [[ $merged && $1 == local ]] && return 1
  [[ $merged && $1 == main ]] && tables='local main'
  for length in "${lengths[@]}"; do
    for table in $tables; do
      REPLY=${held["$table $(($2 & 0xffffffff << 32 - length & 0xffffffff))/$length"]-}
      [[ $REPLY ]] && return
    done
  done
  return 1
}

# Set fates[part] to what will decide it, where that is announced.
find_announced() {
  local part length
  for part in "${!starts[@]}"; do
    search +local "${starts[part]}" || search +main "${starts[part]}" || continue
    if [[ $must_walk ]]; then
      walk_rules "${starts[part]}" 0
    else
      is_preceded "${plain[part]}" && continue
    fi
    [[ $REPLY == +* ]] || continue
    fates[part]=$REPLY
    will_be_fine "$REPLY" || all_fine=''
  done
}

# @end@
# The devices of announced routes, and the answers of today, that were found to be fine.
declare -A will_carry=() will_stay=()
will_be_fine() { # an answer, or an announced route
  local dev=${1#*/}
  if [[ $1 == +* ]]; then
    dev=${dev% *}
    [[ $dev ]] && is_allowed "$dev" && will_carry["/$dev"]=yes
  else
    is_fine "$1" && will_stay["${1#* }"]=yes
  fi
}

# @if auto list@
# Succeed if the route of today's answer precedes the announced one that was found, where only places and metrics count.
is_preceded() { # answer; length
  local prefix
  [[ $1 == '!'* ]] && return 1
  parse_route "$1"
  prefix_length
  if ((length == 32)); then
    [[ $prefix == 32 && $kind == @(local|broadcast) ]]
  else
    [[ $elsewhere == *' table local' ]] || ((prefix > length || (prefix == length && metric == 0)))
  fi
}

is_in_group() { # group, or nothing; route or announced route: is its first device in the group?
  local dev=${2#*/} devs linkdown passed_over
  [[ $1 ]] || return
  [[ $2 == +* ]] || { devices_of "$2" && dev=${devs-}; }
  # A device that is not there yet begins in this one.
  [[ ${group_of["/${dev% *}"]-default} == "$1" ]]
}

# Set REPLY to the route that will decide a packet, or to a refusal, as the kernel goes through the rules.
walk_rules() { # address, source
  local rule words wanted='' matches inverted action value suppressed group number i
  for rule in "${rules[@]}"; do
    # shellcheck disable=SC2206  # split at white space
    words=($rule)
    [[ $wanted && ${words[0]} != "$wanted:" ]] && continue
    wanted='' matches=yes inverted='' action='' value='' suppressed=-1 group=''
    for ((i = 1; i < ${#words[@]}; i++)); do
      case ${words[i]} in
        not) inverted=yes ;;
        from | to)
          i=$((i + 1))
          [[ ${words[i]} == all ]] && continue
          bounds "${words[i]}"
          number=$2
          [[ ${words[i - 1]} == to ]] && number=$1
          ((low <= number && number <= high)) || matches=''
          ;;
        iif) i=$((i + 1)) && [[ ${words[i]} == lo ]] || matches='' ;;
        ipproto) i=$((i + 1)) && [[ ${words[i]} == udp ]] || matches='' ;;
        uidrange) i=$((i + 1)) && [[ ${words[i]} == 0-* ]] || matches='' ;;
        fwmark) i=$((i + 1)) && [[ ${words[i]} == @(0|0x0)/* ]] || matches='' ;;
        oif | tos | dsfield | dscp | sport | dport | tun_id) i=$((i + 1)) matches='' ;;
        suppress_prefixlength) i=$((i + 1)) suppressed=${words[i]} ;;
        suppress_ifgroup) i=$((i + 1)) group=${words[i]} ;;
        lookup | goto) i=$((i + 1)) action=${words[i - 1]} value=${words[i]} ;;
        blackhole | unreachable | prohibit | nop) action=${words[i]} ;;
        '[l3mdev-table]') matches='' ;;
      esac
    done
    # For a packet of no VRF such a rule has no table, and the kernel takes main.
    [[ $value == '[l3mdev-table]' ]] && matches='' value=main
    # A rule acts on a packet that it selects, and with `not` on the others.
    [[ $matches == "$inverted" ]] && continue
    case $action in
      goto) [[ " ${rules[*]}" == *" $value:"* ]] && wanted=$value ;;
      lookup)
        search "$value" "$1" || continue
        case $REPLY in
          throw*) ;;
          blackhole*) REPLY='!Invalid argument' && return ;;
          unreachable*) REPLY='!No route to host' && return ;;
          prohibit*) REPLY='!Permission denied' && return ;;
          *) ((length > suppressed)) && ! is_in_group "$group" "$REPLY" && return ;;
        esac
        ;;
      blackhole) REPLY='!Invalid argument' && return ;;
      prohibit) REPLY='!Permission denied' && return ;;
      unreachable) break ;;
    esac
  done
  REPLY='!Network is unreachable'
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

declare -a cidr_of=() addresses=() starts=() ends=() plain=() fates=()

read_node() {
  # @if auto@
  read_fabric
  # Any later reading comes a second after it.
  fabric_pause=0
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
  waited=''
  while [[ $fabric_awaited ]] && is_booting && may_wait; do
    wait_a_second
    # Only the files, as large tables take long, and systemd ends a check that takes too long.
    read_fabric
    waited=yes
  done
  [[ $waited ]] && read_tables
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

find_carriers() { # -> devs: the expected ones first, then the others in their order
  local -A seen=()
  local answer dev part
  local -a carriers=() others=() answers=("${!verdicts[@]}")
  if ((${#fates[@]})); then
    # The answers of today for announced addresses do not count.
    answers=("${!will_stay[@]}")
    for part in "${!plain[@]}"; do
      [[ ${fates[part]-} ]] || answers+=("${plain[part]#* }")
    done
    for dev in "${!will_carry[@]}"; do
      seen[$dev]=yes
    done
  fi
  for answer in ${answers[@]+"${answers[@]}"}; do
    [[ ${verdicts[$answer]} == fine ]] || continue
    devices_of "- $answer"
    for dev in "${devs[@]}"; do
      [[ $passed_over == *" $dev "* ]] || seen["/$dev"]=yes
    done
  done
  devices_of "$default"
  for dev in "${expected[@]}"; do
    [[ ${seen["/$dev"]-} == yes ]] || continue
    # Not by unset, which reads quotes and backslashes in a name.
    seen["/$dev"]=expected
    # Without a carrier the node still reaches its own address on it.
    [[ $passed_over$linkdown == *" $dev "* ]] || carriers+=("$dev")
  done
  for dev in "${!seen[@]}"; do
    [[ ${seen["$dev"]} == yes ]] && others+=("${dev#/}")
  done
  sort_words ${others[@]+"${others[@]}"}
  devs=(${carriers[@]+"${carriers[@]}"} ${words[@]+"${words[@]}"})
  ((${#devs[@]})) || devs=("${expected[@]}")
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
  find_carriers
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
  local questions='' part dev source length
  local -a parts=() asked=() with_source=() words=()
  local -A seen=()
  for part in "${!plain[@]}"; do
    if [[ ${fates[part]-} ]]; then
      # The kernel cannot be asked about a packet from an address that it does not have yet.
      source=${fates[part]##* }
      [[ $source ]] && walk_rules "${starts[part]}" "$source" && { will_be_fine "$REPLY" || sourced[part]=$REPLY; }
      continue
    fi
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
    with_source+=("$source")
    questions+="route get fibmatch ${addresses[part]} from $source uid 0"$'\n'
  done
  [[ $questions ]] || return 0
  lookup "${questions%$'\n'}"
  for i in "${!asked[@]}"; do
    part=${asked[i]}
    [[ ${sourced[part]-} ]] && continue
    REPLY=''
    # @if auto list@
    if search +local "${starts[part]}" || search +main "${starts[part]}"; then
      bounds "${with_source[i]}"
      walk_rules "${starts[part]}" "$low"
    fi
    # @end@
    [[ $REPLY == +* ]] || REPLY=${answers[i]}
    will_be_fine "$REPLY" || sourced[part]=$REPLY
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
  # Addresses that a route could take.
  local -i takable=1
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
    IFS=' ' read -ra devs <<<"${announced_devs[${4#* }]}"
    takable=$(($3 - $2 + 1))
    for REPLY in ${announced_own[${4#* }]}; do
      (($2 <= REPLY && REPLY <= $3)) && takable+=-1 && dotted "$REPLY" && own["/$REPLY"]=yes
    done
  else
    devices_of "$4"
    printf -v by ',%s' "${devs[@]}"
    by=" by ${by#,}"
    [[ $kind == overlap ]] && only_dead_ends && kind='dead-end'
    # A backslash and a tab precede each next hop; its state is not shown, as in the proof.
    route=${route//\\$'\t'/}
    route=${route% }
    if [[ $4 == *\\$'\t'* ]]; then
      route+=' nexthop'
      route=${route// linkdown nexthop/ nexthop}
      route=${route// dead nexthop/ nexthop}
      route=${route% nexthop}
    fi
  fi
  dotted "$2" && first=$REPLY
  dotted "$3" && last=$REPLY
  bad[$1]=yes
  # Sorted by CIDR, then by order of discovery. Appending to one text would copy it for each finding.
  findings[$1 << 32 | ${#findings[@]}]="$cidr${names[$cidr]:+ (${names[$cidr]})}: $kind $first-$last$by${route:+ ($route)}"
  if [[ $default && $takable != 0 && ($kind == no-route || $kind == overlap || $kind == announced) && ${has_route[$cidr]-} ]]; then
    decided_by "$cidr" "$4" && [[ $4 != *" proto $protocol "* ]] && lost[$cidr]=yes
  fi
  case $kind in
    dead-end) dead["/$dev"]=yes ;;
    local) set_astray ;;
    announced | overlap)
      ((takable)) && unmended[$1]=yes && suggest "$cidr" "$4"
      set_astray
      ;;
    *) unmended[$1]=yes ;;
  esac
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
  local prefix=${2%% *} length=${1#*/}
  [[ ${lost[$1]-} ]] && return
  [[ $prefix == announced ]] && prefix=${announced[${2#* }]}
  [[ $prefix == default ]] && prefix=0.0.0.0/0
  if [[ ! ${suggested[$1]-} && $gateway && $prefix == [0-9]*/* && $2 != *' table '* ]] && ((${prefix#*/} < length)); then
    suggested[$1]="{\"destination\": \"$1\", \"gateway\": \"$gateway\"$out}"
  fi
}

set_astray() { # of devs
  local dev
  for dev in ${devs[@]+"${devs[@]}"}; do
    is_allowed "$dev" && continue
    dev=${dev//[!A-Za-z0-9_.@+-]/?}
    astray["/${dev/#-/?}"]=yes
    [[ $kind == local ]] && has_local=yes
  done
}

# Set gateway and out for suggestions: the first next hop of the default route that leads out by an expected device.
find_way() {
  local i dev
  local -a stuck=()
  [[ $default ]] || return
  parse_route "$default"
  devices_of "$default"
  for i in "${!hop_dev[@]}"; do
    dev=${hop_dev[i]}
    [[ ${hop_dead[i]} || " ${expected[*]} " != *" $dev "* ]] && continue
    is_dead_end "$dev" && stuck+=("$dev") && continue
    [[ ${hop_gateway[i]} == [0-9]* ]] || continue
    gateway=${hop_gateway[i]}
    # A config has no device names with shell characters; without dev, apply looks it up.
    [[ $dev == [!-]* && $dev != *[!A-Za-z0-9_.@+-]* ]] && out=", \"dev\": \"$dev\""
    return
  done
  for dev in ${stuck[@]+"${stuck[@]}"}; do
    dead["/$dev"]=yes
  done
}

# Judge the parts; adjacent ones with the same answer are one finding.
judge() {
  local -i part first=0 last=0
  local new answer='' of=''
  for part in "${!addresses[@]}"; do
    new=${sourced[part]-}
    [[ $new ]] || will_be_fine "${fates[part]-${plain[part]}}" || new=${fates[part]-${plain[part]}}
    [[ $new == +* ]] && new=${new%%/*} && new="announced ${new#+}"
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

find_expected() { # -> absent, present: expected devices; dead: those without carrier
  local dev link
  look 'link show' || answer=''
  for dev in "${expected[@]}"; do
    link=${answer#*": $dev"[:@]}
    if [[ $answer && $link == "$answer" ]]; then
      absent+=("$dev")
    else
      present+=("$dev")
      [[ $answer && ${link%%>*} != *LOWER_UP* ]] && dead["/$dev"]=yes
    fi
  done
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
  if [[ ${#expected[@]} != 0 && ! $default ]]; then
    find_expected
    if ((${#absent[@]})); then
      printf -v REPLY ' and no device %s' "${absent[@]}"
      text+=$'\n'"The node has${REPLY#' and'}: correct expectedDevs, or see the driver of the device (ip link show)."
    fi
    if ((${#present[@]})); then
      printf -v REPLY ' or %s' "${present[@]}"
      text+=$'\n'"Give the node a default route by ${REPLY# or }: see the log of its DHCP client, or its network configuration."
    fi
  fi
  for i in ${unmended[@]+"${!unmended[@]}"}; do
    cidr=${cidrs[i]}
    [[ $default && ! ${suggested[$cidr]-} && ! ${lost[$cidr]-} ]] \
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
  [[ $has_local ]] && text+=$'\n'"The node's own address precedes any route: remove it from its device, or narrow expectedCidrs."
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
declare -a findings=() bad=() unmended=() sourced=() absent=() present=()
gateway='' out='' has_local=''
if ((!${#expected[@]})); then
  for i in "${!cidrs[@]}"; do
    bounds "${cidrs[i]}"
    report "$i" "$low" "$high" '!Network is unreachable'
  done
else
  find_way
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
