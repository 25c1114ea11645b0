#!/bin/bash -p
# Proves that every address of the expected CIDRs leaves by an expected device (that of the default route, unless the
# config names some) or by an allowed one, also when an announced fabric is connected.
#
#   check-route-overlap.sh [now]        now: do not wait
#
# Each apply writes this file again: to change it, change hostRouting.routeOverlap in the agent's config.
# It needs only bash and ip. The deciding route can change only where a route or a selector of a policy rule begins or
# ends: the CIDRs are cut there, and the kernel is asked about one address of each part.
set -fu
export LC_ALL=C

mode=@MODE@
cidrs=(@CIDRS@)
# These contain all of them, those of IPv4.
roots=(@ROOTS@)
# @if ipv6@
# And those of IPv6.
roots6=(@ROOTS6@)
# @end@
families=(@FAMILIES@)
# Patterns of device names.
allowed=(@ALLOWED@)
# Devices by which they must leave; none stands for those of the default route.
given=(@EXPECTED@)
# The names that presets give to the addresses that they expect.
declare -A names=(@NAMES@)
# @if auto list@
# Networks that will be connected.
fabric_networks=(@NETWORKS@)
# @end@

((${#cidrs[@]})) || exit 0

# @SHARED@
# @if auto@
# @AGENT@
# @end@

detected=$folder/route-overlap.detected
ok=$folder/route-overlap.ok
told=$folder/route-overlap.told
# Later starts in this boot do not wait.
[[ -e $ok || -e $detected ]] && waits=0

# --- addresses, and the kernel's routes and rules: the edges where answers can change. Results are in REPLY, or in low and
# high, because a subshell takes as long as all the rest.

# The functions for addresses are those of IPv4, where an address is a number.
# shellcheck disable=SC2329 # `speak` may call it.
use_ipv4() {
  # The kernel treats these ranges specially (multicast, for example).
  family=4 special=(0.0.0.0 224.0.0.0/4 255.255.255.255)

  # Address -> REPLY
  dotted() { printf -v REPLY '%d.%d.%d.%d' $(($1 >> 24)) $(($1 >> 16 & 255)) $(($1 >> 8 & 255)) $(($1 & 255)); }

  bounds() { # of a CIDR, an address or 'default' -> low, high, length
    local IFS=./
    # shellcheck disable=SC2086  # split into octets and length
    if [[ $1 == default ]]; then set -- 0 0 0 0 0; else set -- $1 32; fi
    length=$5 low=$((($1 << 24 | $2 << 16 | $3 << 8 | $4) & 0xffffffff << 32 - $5 & 0xffffffff))
    high=$((low | 0xffffffff >> $5))
  }

  # Address: is it between the last bounds?
  holds() { ((low <= $1 && $1 <= high)); }

  # Address -> REPLY: the one before it
  before() { REPLY=$(($1 - 1)); }

  edge() { # a route or selector -> next: the address after it
    bounds "$1"
    next=$((high + 1)) edges[low]=1 edges[next]=1
  }

  # -> points
  sort_edges() { points=("${!edges[@]}"); }
}

# @if ipv6@
hexadecimal=0123456789abcdef lowest=00000000000000000000000000000000 highest=${lowest//0/f}

# They are those of IPv6, where an address is a text of 32 hexadecimal digits, and `g` is after all of them.
# shellcheck disable=SC2071,SC2086 # Texts are compared, and split into words.
use_ipv6() {
  family=6 special=(:: ::1 fe80::/10 ff00::/8)
  # No others contain one of these.
  [[ " ${roots6[*]} " == *@(' ':|/[0-9]' ')* ]] || special=()

  dotted() { REPLY=${1:0:4}:${1:4:4}:${1:8:4}:${1:12:4}:${1:16:4}:${1:20:4}:${1:24:4}:${1:28:4}; }

  bounds() {
    local IFS=: text=${1%/*} digit digits free zeros=0:0:0:0:0:0:0:
    length=128
    [[ $1 == */* ]] && length=${1#*/}
    [[ $1 == default ]] && text=:: length=0
    if [[ $text == *.* ]]; then
      set -- "${text##*:}" && set -- ${1//./:}
      printf -v text '%s:%x:%x' "${text%:*}" $(($1 << 8 | $2)) $(($3 << 8 | $4))
    fi
    free=${text//[!:]/}
    set -- ${text/::/:${zeros:0:2*(8 - ${#free})}}
    printf -v text %04x "${@/#/0x0}"
    digits=$((length / 4)) free=$((15 >> length % 4)) text=${text}00000000
    digit=$((16#0${text:digits:1} & ~free)) text=${text:0:digits}
    low=$text${hexadecimal:digit:1}$lowest high=$text${hexadecimal:digit | free:1}$highest
    low=${low:0:32} high=${high:0:32}
  }

  holds() { [[ ! ($1 < $low || $1 > $high) ]]; }

  edge() {
    bounds "$1"
    edges+=("$low")
    # Without the digits that become 0.
    next=${high%"${high##*[!f]}"}
    [[ $next ]] || { next=g && return; }
    next=${next%?}${hexadecimal:16#${next: -1} + 1:1}$lowest
    next=${next:0:32}
    edges+=("$next")
  }

  before() {
    local digits=${1%"${1##*[!0]}"}
    [[ $1 == g ]] && REPLY=$highest && return
    REPLY=${digits%?}${hexadecimal:16#0${digits: -1} - 1:1}$highest
    REPLY=${REPLY:0:32}
  }

  # By the last two digits, then by the 15 before them, then by the first 15: an index has 60 bits at most.
  sort_edges() {
    local word sorted=${edges[*]} place digits last=''
    points=()
    for place in 30 15 0; do
      digits=()
      for word in $sorted; do digits[16#${word:place:15}]+=" $word"; done
      sorted=${digits[*]}
    done
    for word in $sorted; do
      [[ $word == "$last" ]] || points+=("$word")
      last=$word
    done
    points+=(g)
  }
}

# Work in the family of an address, and expect its devices.
# shellcheck disable=SC2206 # Split at blanks.
speak() { # address
  local spoken=$((${#1} == 32 ? 6 : 4))
  ((family == spoken)) && return
  "use_ipv$spoken"
  expected=(${expected_of[family]-}) way=${way_of[family]-}
}

# Over a gateway that is FAILED a host passes. `failed` has these with their devices, `failing` the routes by them, and
# `silent`, by the first address of a part, those to it.
declare -A rows_of=() globals=() failed=() silent=()
failing=() companions=()
# Read a row of a table, an address of a device, or a gateway that is FAILED; fail for a rule.
# shellcheck disable=SC2206 # Split at blanks.
read_row() {
  local word=${1%% *} words list
  if [[ $1 == +([0-9]):[$' \t']* ]]; then
    words=($1)
    [[ ${words[2]-} == inet6 ]] || return
    [[ $1 == *' '@(deprecated|tentative|dadfailed)' '* ]] || globals["/${words[1]}"]+=" ${words[3]%/*}"
    return 0
  fi
  [[ $1 == *' FAILED'*( ) ]] && words=($1) && failed["$word ${words[2]}"]=yes && return
  if [[ $word != *:* && $word != default ]]; then
    [[ $word == @(blackhole|unreachable|prohibit) ]] && list=${1%% pref *} && blockers+=("6 ${list%% error *}")
    word=${1#* } word=${word%% *}
  fi
  # A row may be listed twice, and one that has expired decides nothing.
  [[ $'\n'${rows_of[$word]-} == *$'\n'"$1"$'\n'* || $1 == *' expires -'* ]] && return
  [[ $rules_seen ]] || defaults+=("$1")
  [[ $1 == *' from '*([0-9a-f.]):* ]] && by_source=yes
  [[ ${rows_of[$word]-} ]] || edge "$word"
  ((${#failed[@]})) && [[ $1 =~ ' via '([^ ]+)' dev '([^ ]+) ]] \
    && [[ ${failed["${BASH_REMATCH[1]} ${BASH_REMATCH[2]}"]-} ]] && failing+=("$1")
  rows_of[$word]+=$1$'\n'
}

# Put for each answer, among the routes that may carry, the first that is not fine, or else the first. These are all that
# are equal to it, and those that decide in the same table when their gateway speaks again.
stand_in() { # answers, to questions about the parts `asked`
  local i line word way place key
  local -A known=() devs_of=()
  for i in "${!answers[@]}"; do
    line=${answers[i]}
    # Every route of IPv6 has a preference.
    [[ $line == *' pref '@(low|medium|high)* ]] || continue
    word=${line%% *} key=${silent[${starts[asked[i]]}]-}
    [[ $word == *:* || $word == default ]] || word=${line#* } word=${word%% *}
    answers[i]=${rows_of[$word]-$line} answers[i]=${answers[i]%$'\n'}
    [[ $key || ${answers[i]} == *$'\n'* ]] || continue
    split "$key"
    key+=$line
    if [[ ! ${known[$key]-} ]]; then
      sort_routes "$line" "${lines[@]}"
      parse_route "$line"
      place=$elsewhere
      for way in "${lines[@]}"; do
        parse_route "$way"
        [[ $elsewhere == "$place" ]] && break
      done
      for way in "$line" "$way"; do
        parse_route "$way"
        place="$kind$elsewhere $metric $preference"
        split "${rows_of[$destination]-$way}"
        for word in "${lines[@]}"; do
          parse_route "$word"
          [[ $place == "$kind$elsewhere $metric $preference" ]] || continue
          known[$key]=${known[$key]-$word} devs_of[$key]+=" ${hop_dev[*]}"
          is_fine "$word" || { known[$key]=$word && break 2; }
        done
      done
    fi
    answers[i]=${known[$key]-$line} companions[i]=${devs_of[$key]-}
  done
}

# Shorten the address in REPLY as ip does: the first of the longest rows of zeros goes.
# shellcheck disable=SC2086 # Split into groups.
shorten() {
  local IFS=: n zeros=:0:0:0:0:0:0:0:0
  set -- $REPLY
  printf -v REPLY :%x "${@/#/0x}"
  for ((n = 8; n > 1; n--)); do
    [[ $REPLY: == *"${zeros:0:2*n}:"* ]] && REPLY=${REPLY/"${zeros:0:2*n}"/:} && break
  done
  [[ $REPLY == *: ]] && REPLY+=:
  [[ $REPLY == ::* ]] || REPLY=${REPLY#:}
  [[ $n == 6 && $REPLY == ::* || $n == 5 && $REPLY == ::ffff:* ]] \
    && printf -v REPLY %s:%d.%d.%d.%d "${REPLY%:*:*}" 0x${7:0:2} 0x${7:2} 0x${8:0:2} 0x${8:2}
  return 0
}
# @end@

prefix='([0-9a-f.:/]*[0-9:][0-9a-f.:/]*)' # An expression; `all` does not match it.
read_rule() {
  local text=${1/$'\t'/ }
  # @if auto list@
  if [[ $family == 4 && $text == *' lookup '* ]]; then
    REPLY=${text##*' lookup '} REPLY=${REPLY%% *}
    # Inverted, a rule of VRFs selects packets of none, and has no table for them: the kernel takes main.
    [[ $REPLY == '[l3mdev-table]' && $text == *' not '* ]] && REPLY='local  main'
    looked_up+=" $REPLY "
  fi
  # @end@
  [[ $text =~ ' from '$prefix ]] && edge "${BASH_REMATCH[1]}" && by_source=yes
  [[ $text =~ ' to '$prefix ]] && edge "${BASH_REMATCH[1]}"
  [[ $text == *' '@(blackhole|unreachable|prohibit)*( ) ]] && blockers+=("$family $text")
}

read_tables() {
  local line list rules_seen='' questions=$'route show default\nrule show'
  defaults=() edges=()
  for line in "${special[@]}"; do edge "$line"; done
  printf -v list '\nroute show table all root %s' "${roots[@]}"
  # @if ipv6@
  if ((family == 6)); then
    # Equal routes share a decision, so all that lead to the CIDRs are read.
    printf -v list '\nroute show table all root %s' "${roots6[@]}"
    printf -v line '\nroute show table all match %s' "${roots6[@]}"
    questions=$'neigh show nud failed\n'$questions list+=$line$'\naddr show scope global'
    # The kernel may have no IPv6.
    [[ -e /proc/net/if_inet6 ]] || return 0
  fi
  # @end@
  # @if auto list@
  ((family == 4 && ${#fabric_networks[@]} + ${#fabric_addresses[@]})) \
    && list+=$'\nroute show table local exact 127.0.0.0\nlink show type vrf\nlink show\naddr show'
  # @end@
  look "$questions$list" || cannot_prove
  for line in "${lines[@]}"; do
    # @if ipv6@
    ((family == 6)) && read_row "$line" && continue
    # @end@
    case $line in
      [0-9]*:$'\t'*) rules_seen=yes && read_rule "$line" ;;
      # @if auto list@
      [0-9]*': '*) ;; # a device, or an address with its device
      # @end@
      [0-9]*) edge "${line%% *}" ;;
      default*) [[ $rules_seen ]] || defaults+=("$line") ;;
      *)
        [[ $line == @(blackhole|unreachable|prohibit)* ]] && blockers+=("$family $line")
        line=${line#* }
        edge "${line%% *}"
        ;;
    esac
  done
}

# --- lookups

lookup() { # questions, each with a line end -> answers; a refusal is '!' and the kernel's message
  local line refusal=''
  answers=()
  [[ $1 ]] || return 0
  family='' ask "${1%$'\n'}" -force || cannot_prove
  split "$answer"
  [[ $answer == *'Command failed -:'* ]] || { answers=("${lines[@]}") && return; }
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
  local i
  devs=() linkdown=' ' passed_over=' '
  parse_route "$1"
  for i in "${!hop_dev[@]}"; do
    [[ " ${devs[*]-} " == *" ${hop_dev[i]} "* ]] || devs+=("${hop_dev[i]}")
    # The kernel sends nothing by a dead one.
    [[ ${hop_state[i]} == dead ]] && passed_over+="${hop_dev[i]} "
    [[ ${hop_state[i]} == linkdown ]] && linkdown+="${hop_dev[i]} "
  done
}

# The verdicts on devices, and on answers; and the devices by which they leave, if all is fine.
declare -A permissions=() verdicts=() carries=()
is_allowed() {
  local pattern
  # Without an expected device, it is unknown which may carry anything. The slash is for a device with the name @ or *.
  if [[ ! ${permissions["$family/$1"]-} && ${expected-} ]]; then
    permissions["$family/$1"]=no
    # shellcheck disable=SC2053  # it is a pattern
    for pattern in "${allowed[@]}"; do [[ $1 == $pattern ]] && permissions["$family/$1"]=yes; done
  fi
  [[ ${permissions["$family/$1"]-} == yes ]]
}

is_fine() { # an answer: are all its next hops allowed?
  # Without the destination, which does not matter here.
  local dev key=${1#* }
  [[ $1 == '!'* ]] && return 1
  if [[ ! ${verdicts[$key]-} ]]; then
    verdicts[$key]=bad
    devices_of "$1"
    # @if auto list@
    places[$key]="${elsewhere#' table '} $metric"
    # @end@
    ((${#devs[@]})) || return
    for dev in "${devs[@]}"; do
      # An expected device without carrier is a dead end.
      is_allowed "$dev" && [[ $linkdown != *" $dev "* || " ${expected[*]} " != *" $dev "* ]] || return
      [[ $passed_over == *" $dev "* ]] || carries["/$dev"]=yes
    done
    verdicts[$key]=fine
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
  [[ $mode == STRICT ]] || conclude "$detected" "$ok" "$1" 0 4 "$2"
  conclude "$detected" "$ok" "$1" 1 3 "$2"$'\n'"The mode is STRICT: units that wait for hostrouting-ready.service start \
once routing is right."
}

cannot_prove() { conclude_badly "the check itself failed: $answer" "cannot prove anything: $answer"; }

joined() { # words -> REPLY
  printf -v REPLY ', %s' "$@"
  REPLY=${REPLY#, }
}

# --- the fabric: the rule of hostrouting/route_overlap/announced.py

fabric_notes=() fates=()
# @if list@
fabric_source=routeOverlap.fabric
# @end@
# @if auto list@
fabric_addresses=()
# The networks that will be connected; by their numbers, the devices that will have an address in each, and those of
# which a device is not there yet. By network and length, these numbers. The prefix lengths, the longest first.
announced=() announced_devs=() absent=() lengths=()
# By address: the network of an address that comes to table local. And the routes that are there.
own_at=() rows=()
# The tables of answers (none is main) with their metrics; the devices with an address from which packets may leave, and
# those that get another one.
declare -A number_of=() places=() has_address=() changed=()

announce_fabric() {
  local line device own words i with_first=''
  local -A mac_of=() own_of=() is_up=() master_of=() seen=()
  ((${#fabric_networks[@]} + ${#fabric_addresses[@]})) || return 0
  bounds "${roots[0]}" && first_expected=$low
  bounds "${roots[-1]}" && last_expected=$high
  # shellcheck disable=SC2206 # Split at blanks.
  for line in "${lines[@]}"; do # as read_tables read them
    case $line in
      [0-9]*': '*' link/'*)
        words=($line) device=${words[1]%:} device=${device%@*}
        # VRFs are shown before all devices, and so twice.
        seen["/$device"]+=x
        [[ ${words[2]} == *[\<,]UP[,\>]* ]] && is_up["/$device"]=yes
        [[ $line == *' master '* ]] && own=${line#*' master '} && master_of["/$device"]=${own%% *}
        # @end@
        # @if auto@
        for ((i = ${#words[@]} - 4; i > 0; i--)); do
          [[ ${words[i]} == link/* ]] && agent_mac "$device" "${words[i + 1]}" && mac_of[$REPLY]+=" $device" && break
        done
        # @end@
        # @if auto list@
        ;;
      [0-9]*': '*' inet '*)
        words=($line) own=${words[3]}
        [[ ${words[4]} == peer ]] && own=${words[5]}
        own_of["/${words[1]}"]+=" ${words[3]%/*}=$own"
        [[ $line == *' scope global '* ]] && has_address["/${words[1]}"]=yes
        ;;
      # Before Linux 5.14 the first address of a network is a broadcast address, too: that of 127.0.0.0/8, for example.
      'broadcast 127.0.0.0 '*) with_first=yes ;;
      *' table local '*) rows+=("$line") ;;
    esac
  done
  # shellcheck disable=SC2206 # Split at blanks.
  for i in "${!fabric_addresses[@]}"; do
    devs=()
    [[ ${fabric_macs[i]} ]] && devs=(${mac_of[${fabric_macs[i]}]-})
    for device in "${devs[@]-}"; do connect "$device" "${fabric_addresses[i]}"; done
  done
  for own in "${fabric_networks[@]}"; do
    bounds "$own"
    announce '' "$low" "${own#*/}"
  done
}

connect() { # device (empty if it is not there yet), address: as the agent does, with the length 16
  local own address is_new=yes master=${master_of["/$1"]-$1}
  # An address of a VRF brings routes to the table of that VRF alone.
  [[ ${seen["/$master"]-} == xx ]] && return
  [[ ${own_of["/$1"]-} ]] && dotted "$2" && address=$REPLY
  for own in ${own_of["/$1"]-}; do
    bounds "${own#*=}"
    [[ $own == "$address="*/16 ]] && ((low == ($2 & 0xffff0000))) && is_new=''
    # The agent sets the device up, and the kernel connects the networks of its other addresses, too.
    [[ ${is_up["/$1"]-} || ${own#*=} == "${own%=*}/32" ]] || announce "$1" "$low" "${own#*/}"
  done
  is_up["/$1"]=yes
  [[ $is_new ]] && announce "$1" "$(($2 & 0xffff0000))" 16 || return
  changed["/$1"]=yes
  bring_to_local "$2"
}

# Fail if the kernel connects no such network, or if it does not matter here: far from the CIDRs only its address may.
announce() { # device (empty if it is not there yet), network, length -> number
  local last=$(($2 | 0xffffffff >> $3))
  (($2 >> 24)) && { [[ $by_source ]] || (($2 <= last_expected && first_expected <= last)); } || return
  number=${number_of[$2/$3]-}
  if [[ ! $number ]]; then
    number=${#announced[@]}
    announced[number]=$2/$3 announced_devs[number]='' number_of[$2/$3]=$number lengths[32 - $3]=$3
    edges[$2]=1 edges[last + 1]=1
    (($3 < 31)) && bring_to_local "$last" && [[ $with_first ]] && bring_to_local "$2"
  fi
  [[ $1 ]] || absent[number]=yes
  [[ ! $1 || "${announced_devs[number]} " == *" $1 "* ]] || announced_devs[number]+=" $1"
}

# Address of the network `number`
bring_to_local() { own_at[$1]=${own_at[$1]-$number} edges[$1]=1 edges[$1 + 1]=1; }

# Succeed if an announced network may take an address from the answer of today, and set `number` to that of the network.
# An answer stays if its route precedes the new one, or if every rule that looks up its table precedes those that look up
# the table of the new one.
may_take() { # address, answer (after is_fine), anything if the answer is one to a packet with a source -> number
  local longest table length place network=${2%% *}
  number=''
  for longest in "${lengths[@]}"; do
    number=${number_of[$(($1 & 0xffffffff << 32 - longest & 0xffffffff))/$longest]-}
    [[ $number ]] && break
  done
  # A refusal is a finding already.
  [[ ($number || $by_source) && $2 != '!'* ]] || return
  place=${places[${2#* }]} table=${place% *} table=${table:-main}
  if [[ $by_source && ! ${3-} ]] && ! sends_as_now "$2"; then
    number=${number:-0}
  elif [[ ${own_at[$1]-} ]] && ! is_earlier "$table" local && ! stands "$1"; then
    number=${own_at[$1]}
  elif [[ ! $number ]] || is_earlier "$table" main; then
    return 1
  elif [[ $table == main ]]; then
    [[ $network == [0-9d]* ]] || network=${2#* } network=${network%% *}
    bounds "$network"
    ((length < longest || (length == longest && ${place#* })))
  fi
}

stands() { # address: does a route to it in table local precede a new one?
  local line
  dotted "$1"
  for line in "${rows[@]}"; do
    [[ $line == @(local|broadcast)" $REPLY dev "* && $line != *' metric '* ]] && return
  done
  return 1
}

is_earlier() { # table, other table: does every rule that looks up the one precede those that look up the other?
  local before=${looked_up%" $1 "*}
  [[ $1 != "$2" && $before != "$looked_up" && $before != *" $2 "* ]]
}

sends_as_now() { # answer: does the kernel choose the same source when the new addresses are there?
  local dev
  parse_route "$1"
  [[ $kind == local || $1 == *' src '[0-9]* ]] && return
  for dev in "${hop_dev[@]}"; do
    # A device without an address borrows one of another device.
    [[ ${has_address["/$dev"]-} && ! ${changed["/$dev"]-} ]] || return
  done
}

# Set fates[part] to the network that may take it by a device that is not allowed.
find_taken() {
  local part dev
  for ((part = 0; part < ipv4_parts; part++)); do
    may_take "${starts[part]}" "${plain[part]}" || continue
    # A packet from a new address may meet rules about which nobody can be asked yet.
    [[ $by_source || ${absent[number]-} ]] && fates[part]=$number
    for dev in ${announced_devs[number]}; do
      is_allowed "$dev" || fates[part]=$number
      carries["/$dev"]=yes
    done
    [[ ${fates[part]-} ]] && all_fine=''
  done
}

# @end@
# --- the check

# Cut the CIDRs of the family: a part has its first address in starts, the one after its last in ends and the number of
# its CIDR in cidr_of; addresses has the first for ip. A sparse array has its indexes sorted.
cut_cidrs() {
  local line points lows=() nexts=()
  local -A at=()
  local -i i j n=${#starts[@]}
  for i in "${!cidrs[@]}"; do
    # @if ipv6@
    [[ $family${cidrs[i]} == @(4*:*|6+([!:])) ]] && continue
    # @end@
    edge "${cidrs[i]}"
    lows[i]=$low nexts[i]=$next
  done
  sort_edges
  for i in "${!points[@]}"; do at[${points[i]}]=$i; done
  # @if ipv6@
  for line in "${failing[@]}"; do
    edge "${line%% *}"
    for ((j = ${at[$low]}; j < ${at[$next]}; j++)); do silent[${points[j]}]+=$line$'\n'; done
  done
  # @end@
  for i in "${!lows[@]}"; do
    for ((j = ${at[${lows[i]}]}; j < ${at[${nexts[i]}]}; j++)); do
      dotted "${points[j]}"
      cidr_of[n]=$i starts[n]=${points[j]} ends[n]=${points[j + 1]} addresses[n]=$REPLY n+=1
    done
  done
}

# @if auto@
read_fabric
# Without InfiniBand no address will come.
if [[ $fabric_awaited ]] && ! compgen -G '/sys/class/infiniband/*' >/dev/null; then
  look 'link show' && [[ $answer == *' link/infiniband '* ]] || fabric_awaited=''
fi
[[ $fabric_awaited ]] && fabric_notes=("warning: ${fabric_notes[0]}")
[[ $fabric_on ]] || fabric_notes=()
# @end@
# -> expected, the devices by which packets must leave; default: the route that leads out there; way: its first such hop
find_exit() {
  local line i
  expected=("${given[@]}") default='' way=''
  # @if ipv6@
  if ((family == 6)); then
    ((${#defaults[@]} > 1)) && sort_routes "${defaults[@]}" && defaults=("${lines[@]}")
    ((${#given[@]})) || find_exit_of_ipv6 || defaults=()
  fi
  # @end@
  for line in "${defaults[@]}"; do
    own_default "$line" || continue
    for i in "${!hop_dev[@]}"; do
      # One that is dead is passed over by the kernel.
      [[ ${hop_state[i]} != dead && (${#expected[@]} == 0 || " ${expected[*]} " == *" ${hop_dev[i]} "*) ]] || continue
      default=$line way="dev ${hop_dev[i]}${hop_gateway[i]:+ via ${hop_gateway[i]}}"
      break 2
    done
  done
  [[ $default && ${#expected[@]} == 0 ]] && { devices_of "$default"; expected=("${devs[@]}"); }
  expected_of[family]=${expected[*]} way_of[family]=$way
  for i in "${expected[@]}"; do permissions["$family/$i"]=yes; done
}

# shellcheck disable=SC2034 # Not every config needs all of them.
by_source='' looked_up='' way='' all_fine=yes ipv4_parts=0 expected_of=() way_of=() ipv4_defaults=()
declare -a cidr_of=() addresses=() starts=() ends=() plain=() blockers=()
use_ipv4
for family in "${families[@]}"; do
  # @if ipv6@
  ((family == 6)) && use_ipv6
  # @end@
  read_tables
  ((family == 4)) && find_exit
  # @if auto list@
  ((family == 4 && ${#expected[@]})) && announce_fabric
  # @end@
  cut_cidrs
  # shellcheck disable=SC2034
  ((family == 4)) && ipv4_parts=${#starts[@]}
done
printf -v questions 'route get fibmatch %s uid 0\n' "${addresses[@]}"
# @if ipv6@
# Without a family ip shows those of IPv4.
questions+=$'route show default\n'
# @end@
lookup "$questions"
# @if ipv6@
# shellcheck disable=SC2034 # find_exit_of_ipv6 uses it by its name.
ipv4_defaults=("${answers[@]:${#addresses[@]}}") answers=("${answers[@]:0:${#addresses[@]}}")
# IPv6 is the last family.
find_exit
asked=("${!addresses[@]}")
stand_in
# @end@
plain=("${answers[@]}")
if ((${#plain[@]} != ${#addresses[@]})); then
  answer="ip gave ${#plain[@]} answers to ${#addresses[@]} questions; the last is: ${plain[*]: -1}"
  cannot_prove
fi
for part in "${!plain[@]}"; do
  # @if ipv6@
  speak "${starts[part]}"
  # @end@
  one=${plain[part]}
  [[ ${verdicts[${one#* }]-} == fine ]] || is_fine "$one" || all_fine=''
done
# @if ipv6@
((ipv4_parts)) && speak 0
# @end@
# @if auto list@
((${#announced[@]})) && find_taken
# @end@

printf -v notes %s "${fabric_notes[@]/#/$'\n'}"

# At all, after a wait.
look_again() { exec "$BASH" -p "$0" "$seconds" {never}<&-; }

pass() {
  local dev carriers=() others=() verb=leave
  local -i i
  # @if auto@
  # While addresses may come into the pool, no routes are a proof. Only the files are read meanwhile: large tables take
  # long, and systemd ends a check that takes too long.
  fabric_pause=0
  while [[ $fabric_awaited ]] && wait_a_second "RDMA is switched on, but $fabric_pool has no addresses for InfiniBand yet"; do
    read_fabric
    [[ $fabric_awaited ]] || look_again
  done
  # @end@
  # The devices that carry: the expected ones first, then the others by name.
  devices_of "$default"
  for dev in "${expected[@]}"; do
    # Without a carrier the node still reaches its own address on it.
    [[ ! ${carries["/$dev"]-} || $passed_over$linkdown == *" $dev "* ]] || carriers+=("$dev")
    # Not by unset, which reads quotes and backslashes in a name.
    carries["/$dev"]=''
  done
  for dev in "${!carries[@]}"; do
    [[ ${carries["$dev"]} ]] || continue
    for ((i = ${#others[@]}; i > 0; i--)); do
      [[ ${others[i - 1]} < "${dev#/}" ]] && break
      others[i]=${others[i - 1]}
    done
    others[i]=${dev#/}
  done
  carriers+=("${others[@]}")
  ((${#carriers[@]})) || carriers=("${expected[@]}")
  joined "${carriers[@]}"
  ((${#cidrs[@]} == 1)) && verb=leaves
  verb+=" by $REPLY"
  joined "${cidrs[@]}"
  conclude "$ok" "$detected" "$REPLY $verb" 0 5 "$REPLY $verb$notes"
}

[[ ! $by_source && $all_fine ]] && pass

# --- bash reads on if something is wrong, or if the source of a packet matters

# A rule that selects by source gets the source that the kernel chose after the answer without one. The second answer
# decides for a connected socket, the first for a datagram. Set sourced[part] to the first answer that is not fine.
ask_by_source() {
  local questions='' part dev source sources i parts=() asked=()
  local -A seen=()
  for part in "${!plain[@]}"; do
    [[ ${fates[part]-} || ${plain[part]} == '!'* ]] && continue
    devs=('')
    # A hash of the flow selects the next hop and so the source.
    [[ ${plain[part]} == *\\$'\t'* && ${plain[part]} != *' src '* ]] && devices_of "${plain[part]}"
    for dev in "${devs[@]}"; do
      parts+=("$part")
      questions+="route get ${addresses[part]}${dev:+ oif $dev} uid 0"$'\n'
    done
  done
  lookup "$questions"
  questions=''
  for i in "${!parts[@]}"; do
    part=${parts[i]} sources=''
    [[ ${answers[i]} =~ ' src '([0-9a-f.:]+) ]] && sources=${BASH_REMATCH[1]}
    # @if ipv6@
    # A program may send from any address of the devices by which the packet may leave.
    if ((part >= ipv4_parts)); then
      devices_of "${plain[part]}"
      for dev in "${devs[@]}" ${companions[part]-}; do sources+=${globals["/$dev"]-}; done
    fi
    # @end@
    for source in $sources; do
      [[ ${seen[$part $source]-} ]] && continue
      seen[$part $source]=yes asked+=("$part")
      questions+="route get fibmatch ${addresses[part]} from $source uid 0"$'\n'
    done
  done
  lookup "$questions"
  # @if ipv6@
  speak "$lowest"
  stand_in
  # @end@
  for i in "${!asked[@]}"; do
    part=${asked[i]}
    # @if ipv6@
    speak "${starts[part]}"
    # @end@
    is_fine "${answers[i]}" || sourced[part]=${sourced[part]-${answers[i]}}
    # @if auto list@
    ((part < ipv4_parts)) && [[ ! ${fates[part]-} ]] && may_take "${starts[part]}" "${answers[i]}" sourced && fates[part]=$number
    # @end@
  done
}

# Find the most specific route or rule that refuses an address: the kernel answers only with an error number.
blocker_of() { # address, the kernel's message -> REPLY
  local line word length found='' longest=-1
  for line in "${blockers[@]}"; do
    [[ $line == "$family "* ]] || continue
    line=${line#* }
    # For an 'unreachable' rule, the kernel's message is that for 'no route'.
    [[ $2 == 'Network is unreachable' && $line != [0-9]*:*unreachable* ]] && continue
    word=${line#* }
    [[ $line == [0-9]*:* ]] && word=default
    [[ $line == [0-9]*:*' to '* ]] && word=${line##*' to '}
    bounds "${word%% *}"
    holds "$1" && ((length > longest)) && found=$line longest=$length
  done
  REPLY=${found%"${found##*[! ]}"}
}

report() { # number of the cidr, first address, the one after the last, answer: adds a finding
  # @if ipv6@
  speak "$2"
  # @end@
  local kind range='' by='' dev route=$4 cidr=${cidrs[$1]}
  case $4 in
    '!'*)
      kind=blocked
      [[ $4 == '!Network is unreachable' ]] && kind=no-route
      blocker_of "$2" "${4#!}" && route=$REPLY
      ;;
    # @if auto list@
    'announced '*)
      kind=announced by=${announced_devs[${4#* }]# } route=${announced[${4#* }]}
      dotted "${route%/*}"
      route="$REPLY/${route#*/}, announced by $fabric_source"
      ;;
    # @end@
    *)
      devices_of "$4"
      # It is not fine, so one of them is a dead end if all are allowed.
      by=${devs[*]} kind='dead-end'
      for dev in "${devs[@]}"; do is_allowed "$dev" || kind=overlap; done
      ((${#expected[@]})) || kind=unknown-exit
      [[ $4 == 'local '* ]] && kind='local'
      # @if ipv6@
      for dev in ' pref '[a-z]+ ' expires '[0-9]+sec; do
        [[ $family == 6 && $route =~ $dev ]] && route=${route/"${BASH_REMATCH[0]}"/}
      done
      # Before a list ip leaves no space.
      [[ $route == *[!\ ]\\$'\t'* ]] && route=${route/\\$'\t'/ }
      # @end@
      # A backslash and a tab precede each next hop; its state is not shown, as in the proof.
      route=${route//\\$'\t'/} route=${route% }
      if [[ $4 == *\\$'\t'* ]]; then
        route+=' nexthop' route=${route// linkdown nexthop/ nexthop}
        route=${route// dead nexthop/ nexthop} route=${route% nexthop}
      fi
      ;;
  esac
  # The kernel names it only once a rule of the node was changed.
  route=${route//' table local'/}
  before "$3"
  for dev in "$2" "$REPLY"; do
    dotted "$dev"
    # @if ipv6@
    [[ $family == 6 ]] && shorten
    # @end@
    range+=-$REPLY
  done
  bad[$1]=$cidr kinds[$kind]=yes ill=${ill:-$2}
  # Sorted by CIDR, then by order of discovery. Appending to one text would copy it for each finding.
  findings[$1 << 32 | ${#findings[@]}]="$cidr${names[$cidr]:+ (${names[$cidr]})}: $kind ${range:1}\
${by:+ by ${by// /,}}${route:+ ($route)}"
}

# Judge the parts; adjacent ones with the same answer are one finding.
judge() {
  local part first='' last='' new answer='' of=''
  for part in "${!addresses[@]}"; do
    # @if ipv6@
    speak "${starts[part]}"
    # @end@
    new=${sourced[part]-}
    [[ $new ]] || is_fine "${plain[part]}" || new=${plain[part]}
    new=${fates[part]+announced }${fates[part]-$new}
    [[ $new && $new == "$answer" && ${cidr_of[part]} == "$of" && ${starts[part]} == "$last" ]] \
      && last=${ends[part]} && continue
    [[ $answer ]] && report "$of" "$first" "$last" "$answer"
    answer=$new
    [[ $new ]] && first=${starts[part]} last=${ends[part]} of=${cidr_of[part]}
  done
  [[ $answer ]] && report "$of" "$first" "$last" "$answer"
}

may_heal() { # -> REPLY: the finding, or its cause, that may go by itself
  local dev
  REPLY="table main has no IPv$family default route"
  ((${#expected[@]})) || return 0
  [[ ${kinds[local]-}${kinds[blocked]-}${kinds[announced]-} ]] && return 1
  family=4 look 'link show' || return
  for dev in "${expected[@]}"; do
    REPLY="there is no network device $dev"
    [[ $answer == *": $dev"[:@]* ]] || return 0
  done
  REPLY=${findings[*]:0:1}
  [[ ! ${kinds[overlap]-} ]]
}

explain() { # -> REPLY
  local text most=10
  joined "${expected[@]}"
  text="${#bad[@]} of ${#cidrs[@]} expected CIDRs would not leave by $REPLY as a whole:"
  way="expected: ${way:-dev ${REPLY//, / or }, by which no default route leads out}"
  if ((!${#expected[@]})); then
    way="To give it one, see ${givers[family]}, or its network configuration"
    text="the node has no IPv$family default route"
    # @if ipv6@
    [[ $family == 6 && ${!kinds[*]} != no-route ]] && way='Name the device in expectedDevs' \
      && text='neither the IPv4 default route nor those of IPv6 name one device'
    # @end@
    REPLY=" and the config names no expectedDevs, so it is unknown where ${bad[*]} should leave:"
    [[ ${!kinds[*]} == no-route ]] && REPLY=", so nothing leads to ${bad[*]}"
    text+=$REPLY
  fi
  printf -v REPLY '\n  %s' "${findings[@]:0:most}"
  ((${#findings[@]} > most)) && REPLY+=$'\n'"  and $((${#findings[@]} - most)) more in $detected"
  REPLY=$text$REPLY$'\n'"$way; for the routes that help: @hostrouting check@"
}

declare -A kinds=()
# ill: the first address that has a finding
findings=() bad=() sourced=() ill=''
[[ $by_source ]] && ask_by_source
# @if auto@
((${#fates[@]})) && date_fabric_source
# @end@
judge
((${#findings[@]})) || pass
# @if ipv6@
speak "$ill"
# @end@
((seconds < waits)) && may_heal && wait_a_second "$REPLY" && look_again
explain
printf -v lines '%s\n' "${findings[@]}"
conclude_badly "${lines%$'\n'}" "$REPLY$notes"
