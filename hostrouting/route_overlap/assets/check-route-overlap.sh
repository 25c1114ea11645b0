#!/bin/bash -p
# Proves that every address of the expected CIDRs leaves by an expected device (that of the default route, unless the
# config names some) or by an allowed one, also when an announced fabric is connected.
#
#   check-route-overlap.sh [now]        now: do not wait
#
# Exits 10 if gates may start: all is fine, or the mode is WARN. Exits 11 otherwise; with any other status it was cut.
#
# Each apply writes this file again: to change it, change hostRouting.routeOverlap in the agent's config.
# It needs only bash and ip. The deciding route can change only where a route or a selector of a policy rule begins or
# ends: the CIDRs are cut there, and the kernel is asked about one address of each part.
set -fu
export LC_ALL=C

mode=@MODE@
cidrs=(@CIDRS@)
# Their first addresses, and those after their last ones; of IPv4 numbers.
firsts=(@FIRSTS@)
nexts=(@NEXTS@)
families=(@FAMILIES@)
# Patterns of device names.
allowed=(@ALLOWED@)
# Devices by which they must leave, or networks that stand for them; none stands for those of the default route.
given=(@EXPECTED@)
# The names that presets give to the addresses that they expect.
declare -A names=(@NAMES@)
# @if auto list@
# Networks that will be connected.
fabric_networks=(@NETWORKS@)
# @end@
# @if after@
# Units that connect networks: the proof waits for them.
after=(@AFTER@)
# @end@

((${#cidrs[@]})) || exit 10

# @SHARED@
# @if auto@
# @AGENT@
# @end@

detected=$folder/route-overlap.detected ok=$folder/route-overlap.ok told=$folder/route-overlap.told
# Later starts in this boot do not wait.
[[ -e $ok || -e $detected ]] && waits=0

# --- addresses, and the kernel's routes and rules: the edges where answers can change. Results are in REPLY, or in low and
# high, because a subshell takes as long as all the rest.

# The functions for addresses are those of IPv4, where an address is a number.
use_ipv4() {
  # The edges of the CIDRs, and within them of ranges that the kernel treats specially (multicast, for example). The roots contain all CIDRs.
  family=4 edges=(@EDGES@) roots=(@ROOTS@)

  # Address -> REPLY
  dotted() { printf -v REPLY '%d.%d.%d.%d' $(($1 >> 24)) $(($1 >> 16 & 255)) $(($1 >> 8 & 255)) $(($1 & 255)); }

  bounds() { # of a CIDR, an address or 'default' -> low, high, length
    local IFS=./
    # shellcheck disable=SC2086  # split into octets and length
    if [[ $1 == default ]]; then set -- 0 0 0 0 0; else set -- $1 32; fi
    length=$5 low=$((($1 << 24 | $2 << 16 | $3 << 8 | $4) & 0xffffffff << 32 - $5 & 0xffffffff)) high=$((low | 0xffffffff >> $5))
  }

  # Address: is it between the last bounds?
  holds() { ((low <= $1 && $1 <= high)); }

  # Address -> REPLY: the one before it
  before() { REPLY=$(($1 - 1)); }

  edge() { # a route or selector -> next: the address after it
    bounds "$1" && next=$((high + 1)) edges[low]=1 edges[next]=1
  }

  # -> points, which are none yet
  sort_edges() { points=("${!edges[@]}"); }
}

# @if ipv6@
hexadecimal=0123456789abcdef lowest=00000000000000000000000000000000 highest=${lowest//0/f}

# They are those of IPv6, where an address is a text of 32 hexadecimal digits, and `g` is after all of them.
# shellcheck disable=SC2071,SC2086 # Texts are compared, and split into words.
use_ipv6() {
  family=6 edges=(@EDGES6@) roots=(@ROOTS6@)

  dotted() { REPLY=${1:0:4}:${1:4:4}:${1:8:4}:${1:12:4}:${1:16:4}:${1:20:4}:${1:24:4}:${1:28:4}; }

  bounds() {
    local IFS=: text=${1%/*} digit digits free zeros=0:0:0:0:0:0:0:
    [[ $1 == */* ]] && length=${1#*/} || length=128
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
    # Without the digits that become 0.
    bounds "$1" && next=${high%"${high##*[!f]}"}
    if [[ $next ]]; then next=${next%?}${hexadecimal:16#${next: -1} + 1:1}$lowest next=${next:0:32}; else next=g; fi
    edges+=("$low" "$next")
  }

  before() {
    local digits=${1%"${1##*[!0]}"}
    [[ $1 == g ]] && REPLY=$highest && return
    REPLY=${digits%?}${hexadecimal:16#0${digits: -1} - 1:1}$highest
    REPLY=${REPLY:0:32}
  }

  # Digits are sorted as the indexes of arrays, fifteen at a time: for few edges a program would take as long as all the
  # rest. For many it is faster, because a text that grows is copied each time.
  sort_edges() { # position of the digits, edges that are equal before it
    local edge digits groups=()
    (($# > 100)) && split "$(printf '%s\n' "${@:2}" | sort -u)" && points+=("${lines[@]}") && return
    for edge in "${@:2}"; do digits=${edge:$1:15} && groups[17#0${digits/g/ggggggggggggggg}]+=" $edge"; done
    for edge in "${groups[@]}"; do
      set -- "$1" $edge
      if [[ ${edge//" $2"/} ]]; then sort_edges $(($1 + 15)) "${@:2}"; else points+=("$2"); fi
    done
  }
}

# Over a gateway that is FAILED a host passes. `failed` has these with their devices, `failing` the routes by them, and
# `silent`, by the first address of a part, those to it.
declare -A rows_of=() globals=() failed=() silent=()
failing=() companions=()
# shellcheck disable=SC2206 # Split at blanks.
read_ipv6() { # gateways that are FAILED, addresses of devices, rows of tables
  local line word list words && split "$1"
  for line in "${lines[@]}"; do words=($line) && failed["${line%% *} ${words[2]-}"]=yes; done
  split "$2"
  for line in "${lines[@]}"; do
    words=($line)
    [[ $line == *' '@(deprecated|tentative|dadfailed)' '* ]] || globals["/${words[1]}"]+=" ${words[3]%/*}"
  done
  split "$3"
  for line in "${lines[@]}"; do
    destination_of "$line"
    [[ $line == @(blackhole|unreachable|prohibit)' '* ]] && list=${line%% pref *} && blockers+=("${list%% error *}")
    # A row may be listed twice, and one that has expired decides nothing.
    [[ $'\n'${rows_of[$word]-} == *$'\n'"$line"$'\n'* || $line == *' expires -'* ]] && continue
    [[ $line == *' from '*([0-9a-f.]):* ]] && by_source=yes
    [[ ${rows_of[$word]-} ]] || edge "$word"
    # The kernel may name any route that shares a nexthop object, and several next hops with the preference of any.
    [[ $line == *@(' nhid '[0-9]|\\$'\t')* || ${#failed[@]} -gt 0 && $line =~ ' via '([^ ]+)' dev '([^ ]+) \
      && ${failed["${BASH_REMATCH[1]} ${BASH_REMATCH[2]}"]-} ]] && failing+=("$line")
    rows_of[$word]+=$line$'\n'
  done
}

# Put for each answer, among the routes that may carry, the first that is not fine, or else the first. These are all that
# are equal to it, and those that decide in the same table when their gateway speaks again; but none whose hops are dead.
stand_in() { # answers, to questions about the parts `asked`
  local i line word way place key && local -A known=() devs_of=()
  for i in "${!answers[@]}"; do
    line=${answers[i]}
    # Every route of IPv6 has a preference.
    [[ $line == *' pref '@(low|medium|high)* ]] || continue
    destination_of "$line" && key=${silent[${starts[asked[i]]}]-}
    answers[i]=${rows_of[$word]-$line} answers[i]=${answers[i]%$'\n'}
    [[ $key || ${answers[i]} == *$'\n'* ]] || continue
    split "$key" && key+=$line
    if [[ ! ${known[$key]-} ]]; then
      [[ $line == *@(' nhid '[0-9]|\\$'\t')* ]] || lines=("$line" "${lines[@]}")
      sort_routes "${lines[@]}"
      parse_route "$line" && place=$elsewhere
      for way in "${lines[@]}" "$line"; do parse_route "$way" && [[ $elsewhere == "$place" ]] && break; done
      for way in "$line" "$way"; do
        parse_route "$way" && place="$kind$elsewhere $metric $preference"
        # A dump has several next hops with one preference: if the named one is another, no row is equal to the answer.
        split "${rows_of[$destination]-}$way"
        for word in "${lines[@]}"; do
          parse_route "$word"
          [[ $place == "$kind$elsewhere $metric $preference" && ${hop_state[*]} != dead*(' dead') ]] || continue
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
  for ((n = 8; n > 1; n--)); do [[ $REPLY: == *"${zeros:0:2*n}:"* ]] && REPLY=${REPLY/"${zeros:0:2*n}"/:} && break; done
  [[ $REPLY == *: ]] && REPLY+=:
  [[ $REPLY == ::* ]] || REPLY=${REPLY#:}
  [[ $n == 6 && $REPLY == ::* || $n == 5 && $REPLY == ::ffff:* ]] \
    && printf -v REPLY %s:%d.%d.%d.%d "${REPLY%:*:*}" 0x${7:0:2} 0x${7:2} 0x${8:0:2} 0x${8:2}
  return 0
}
# @end@

prefix='([0-9a-f.:/]*[0-9:][0-9a-f.:/]*)' # An expression; `all` does not match it.
read_rules() { # rules
  local line && split "${1//$'\t'/ }"
  # @if auto list@
  [[ $family == 4 && ${lines[0]-} == 0:*' lookup local'* ]] && local_first=yes
  # @end@
  for line in "${lines[@]}"; do
    if [[ $line =~ ' from '$prefix ]]; then
      edge "${BASH_REMATCH[1]}" && by_source=yes
      # @if auto list@
      [[ $line == *' not '* ]] && low=0 high=$((0xffffffff))
      sources+=("$low $high")
      # @end@
    fi
    [[ $line =~ ' to '$prefix ]] && edge "${BASH_REMATCH[1]}"
    [[ $line == *' '@(blackhole|unreachable|prohibit)*( ) ]] && blockers+=("$line")
  done
}

read_routes() { # rows of tables, of IPv4
  local line word && split "$1"
  for line in "${lines[@]}"; do
    [[ $line == [0-9d]* ]] && edge "${line%% *}" && continue
    destination_of "$line"
    edge "$word"
    [[ $line == @(blackhole|unreachable|prohibit)' '* ]] && blockers+=("$line")
    # @if auto list@
    [[ $line == @(local|broadcast)*' table local '* && $line != *' '@(metric|tos)' '* ]] && held[$word]=yes
    # @end@
  done
}

read_tables() {
  local line list='' && defaults=() others=()
  ((${#roots[@]})) && printf -v list 'route show table all root %s\n' "${roots[@]}"
  # @if auto list@
  ((family == 4 && ${#fabric_networks[@]} + ${#fabric_addresses[@]})) && others=('route show table main proto kernel' \
    'route show table local exact 127.0.0.0' 'link show' 'addr show up' 'addr show')
  # @end@
  # @if ipv6@
  if ((family == 6)); then
    # The kernel may have no IPv6.
    [[ -e /proc/net/if_inet6 ]] || return 0
    # Equal routes share a decision, so all that lead to the CIDRs are read.
    printf -v line 'route show table all match %s\n' "${roots[@]}"
    list+=$line others=('neigh show nud failed' 'addr show scope global')
  fi
  # @end@
  look '' 'route show default' 'rule show' "$list" "${others[@]}" || cannot_prove
  read_rules "${parts[2]}"
  # @if ipv6@
  ((family == 4)) || read_ipv6 "${parts[@]:4}" "${parts[3]}"
  # @end@
  ((family == 6)) || read_routes "${parts[1]}${parts[3]}"
  split "${parts[1]}"
  defaults=("${lines[@]}") others=("${parts[@]:4}")
}

# --- lookups

# Questions, each with a line end -> answers
lookup() { answers=() && [[ ! $1 ]] || { look "${1%$'\n'}" && read_answers; } || cannot_prove; }

devices_of() { # a route as ip prints it -> devs, in order, each once
  local dev && devs=() && parse_route "$1"
  for dev in "${hop_dev[@]}"; do [[ " ${devs[*]-} " == *" $dev "* ]] || devs+=("$dev"); done
}

# The verdicts on devices (`dead-end`: expected, and without carrier) and on answers, both of the family; and the devices by
# which addresses leave, if all is fine.
declare -A permissions=() verdicts=() carries=()
printf -v patterns '|%s' "${allowed[@]}"
is_allowed() {
  # Without an expected device, it is unknown which may carry anything. The slash is for a device with the name @ or *.
  if [[ ! ${permissions["/$1"]-} && ${expected-} ]]; then
    if [[ $1 == @($patterns) ]]; then permissions["/$1"]=yes; else permissions["/$1"]=no; fi
  fi
  [[ ${permissions["/$1"]-no} != no ]]
}

is_fine() { # an answer: are all its next hops allowed?
  # Without the destination, which does not matter here.
  local i dev key=${1#* }
  [[ $1 == '!'* ]] && return 1
  if [[ ! ${verdicts[$key]-} ]]; then
    verdicts[$key]=bad
    parse_route "$1"
    # @if auto list@
    places[$key]="${elsewhere#' table '} $metric"
    # @end@
    ((${#hop_dev[@]})) || return
    for i in "${!hop_dev[@]}"; do
      dev=${hop_dev[i]}
      is_allowed "$dev" || return
      [[ ${permissions["/$dev"]} == yes ]] && carries["/$dev"]=yes && continue
      # The kernel sends nothing to a next hop that is dead, and the node reaches its own address without a carrier.
      [[ ${hop_state[i]} == dead || $kind == @(local|anycast) ]] || return
    done
    verdicts[$key]=fine
  fi
  [[ ${verdicts[$key]} == fine ]]
}

# --- verdicts

conclude() { # marker, the other marker, lines for it, exit status, priority, verdict
  [[ -d $folder ]] || mkdir -p "$folder"
  printable "$3"
  printf '%s\n' "$REPLY" >"$1" || tell 4 "$1 is out of date: it could not be written"
  [[ -e $2 ]] && rm -f "$2"
  finish "$4" "$5" "$6"
}

conclude_badly() { # lines for the marker, verdict
  local verdict="$2"$'\n''The mode is STRICT: units that wait for hostrouting-ready.service start once routing is right.'
  [[ $mode == STRICT ]] && conclude "$detected" "$ok" "$1" 11 3 "$verdict"
  conclude "$detected" "$ok" "$1" 10 4 "$2"
}

cannot_prove() { conclude_badly "the check itself failed: $trouble" "cannot prove anything: $trouble"; }

# Words -> REPLY
joined() { printf -v REPLY ', %s' "$@" && REPLY=${REPLY#, }; }

# --- the fabric: the rule of hostrouting/route_overlap/announced.py

fabric_notes=() fates=()
# @if list@
fabric_source=routeOverlap.fabric
# @end@
# @if auto list@
fabric_addresses=()
# The sources that rules select, as `first last`; the prefix lengths of the announced networks, the longest first; and one
# of these, if a rule may select by an address in it, about which nobody can ask yet.
sources=() lengths=() by_announced='' local_first=''
# The networks that come to table main, and those that are there. By address: the network of one that comes to table local,
# and those that are there. The tables of answers (none is main) with their metrics.
declare -A announced=() connected=() own_at=() held=() places=()

announce_fabric() {
  local line i with_first='' uncovered=${fabric_networks[*]}
  ((${#fabric_networks[@]} + ${#fabric_addresses[@]})) || return 0
  split "${others[0]}"
  for line in "${lines[@]}"; do [[ $line == *' '@(metric|tos|linkdown|dead)' '* ]] || connected[${line%% *}]=yes; done
  # Before Linux 5.14 the first address of a network is a broadcast address, too: that of 127.0.0.0/8, for example.
  [[ ${others[1]} == *'broadcast 127.0.0.0 '* ]] && with_first=yes
  for i in "${fabric_networks[@]}"; do announce "$i"; done
  # @end@
  # @if auto@
  local words device seen=' '
  split "${others[4]}"
  # shellcheck disable=SC2206 # Split at blanks.
  for line in "${lines[@]}"; do
    words=($line)
    [[ ${words[4]} == peer ]] && words[3]=${words[5]}
    # The agent sets devices up, and the kernel connects the networks of their other addresses, too.
    [[ ${words[2]} == inet && $'\n'${others[3]} != *$'\n'"$line"* && $line != *" inet ${words[3]%/*}/32 "* ]] && announce "${words[3]}"
  done
  for i in "${fabric_addresses[@]}"; do
    dotted "$i"
    # The agent adds no address that is there.
    [[ ${others[3]} == *" inet $REPLY/16 "* ]] || { announce "$REPLY/16" && bring "$i"; }
  done
  split "${others[2]}"
  # shellcheck disable=SC2206 # Split at blanks.
  for line in "${lines[@]}"; do
    words=($line) device=${words[1]%:} line=${line#*' link/'*' '}
    agent_mac "${device%@*}" "${line%% *}" && [[ " ${fabric_macs[*]} " == *" $REPLY "* ]] || continue
    seen+="$REPLY "
    is_allowed "${device%@*}" || uncovered=yes
  done
  for i in "${fabric_macs[@]}"; do [[ $seen == *" $i "* ]] || uncovered=yes; done
  # @end@
  # @if auto list@
  # Devices that may carry all take nothing.
  [[ $uncovered$by_announced ]] || announced=() own_at=() lengths=()
}

# Note a network that will be connected; fail if the kernel connects none like it.
announce() { # CIDR -> network
  local pair
  bounds "$1" && ((low >> 24)) || return
  dotted "$low" && network=$REPLY/$length
  edges[low]=1 edges[high + 1]=1
  ((length < 31)) && bring "$high" && [[ $with_first ]] && bring "$low"
  [[ ${connected[${network%/32}]-} ]] && return
  announced["$low/$length"]=$network lengths[32 - length]=$length
  for pair in "${sources[@]}"; do ((${pair% *} <= high && low <= ${pair#* })) && by_announced=${by_announced:-$network}; done
  return 0
}

bring() { # an address that comes to table local
  dotted "$1" && edges[$1]=1 edges[$1 + 1]=1
  [[ ${held[$REPLY]-} ]] || own_at[$1]=${own_at[$1]-$network}
}

# Succeed if an announced network may take an address from the answer of today. It does not if the route of the answer
# precedes the new one in table main, or is one of table local, which precedes main.
may_take() { # address, answer (after is_fine) -> network
  local place word length
  # A refusal is a finding already.
  [[ $2 != '!'* ]] || return
  network=${own_at[$1]-} place=${places[${2#* }]}
  [[ $network ]] && return
  for length in "${lengths[@]}"; do
    network=${announced["$(($1 & 0xffffffff << 32 - length & 0xffffffff))/$length"]-} && [[ $network ]] && break
  done
  [[ $network && ($place != 'local '* || ! $local_first) ]] || return
  [[ $place == ' '* ]] || return 0
  destination_of "$2"
  bounds "$word"
  ((length < ${network#*/} || (length == ${network#*/} && ${place#* })))
}

find_taken() { # -> fates[part]: the network that may take it
  local part
  ((${#announced[@]} + ${#own_at[@]})) || return
  for part in "${!plain[@]}"; do
    if may_take "${starts[part]}" "${plain[part]}"; then
      fates[part]=$network
    elif [[ $by_announced && ${plain[part]} != @('!'|'local '|*' src '[0-9])* ]]; then
      # The kernel may choose another source by then.
      fates[part]=${network:-$by_announced}
    fi
  done
}

# @end@
# --- the check

# Cut the CIDRs of the family: a part has its first address in starts, the one after its last in ends and the number of
# its CIDR in cidr_of; addresses has the first for ip. A sparse array has its indexes sorted.
cut_cidrs() {
  local line points && local -A at=()
  local -i i j n=${#starts[@]}
  points=() && sort_edges 0 "${edges[@]}"
  for i in "${!points[@]}"; do at[${points[i]}]=$i; done
  # @if ipv6@
  for line in "${failing[@]}"; do
    edge "${line%% *}"
    for ((j = ${at[$low]}; j < ${at[$next]}; j++)); do silent[${points[j]}]+=$line$'\n'; done
  done
  # @end@
  for i in "${!cidrs[@]}"; do
    # @if ipv6@
    [[ $family${cidrs[i]} == @(4*:*|6+([!:])) ]] && continue
    # @end@
    for ((j = ${at[${firsts[i]}]}; j < ${at[${nexts[i]}]}; j++)); do
      dotted "${points[j]}" && cidr_of[n]=$i starts[n]=${points[j]} ends[n]=${points[j + 1]} addresses[n]=$REPLY n+=1
    done
  done
}

# @if networks@
# Put in place of each network in `given` the device of a default route with an address in it, which is neither InfiniBand
# nor virtual. Without one, or with several, the network stays: no device has such a name.
resolve_given() {
  local i line link dev matching by_default=' '
  for line in "${defaults[@]}"; do
    own_default "$line" && for i in "${!hop_dev[@]}"; do [[ ${hop_state[i]} == dead ]] || by_default+="${hop_dev[i]} "; done
  done
  for i in "${!given[@]}"; do
    [[ ${given[i]} == */* ]] || continue
    { matching=() && details=yes look '' 'link show' "addr show to ${given[i]}" && split "${parts[2]}"; } || cannot_prove
    for line in "${lines[@]}"; do
      dev=${line#*: } dev=${dev%% *}
      # A device may have thousands of addresses, and a node as many devices: `#` would take minutes.
      [[ $by_default == *" $dev "* && " ${matching[*]-} " != *" $dev "* && $'\n'${parts[1]} =~ $'\n'"${line%%:*}: "([^$'\n']*) ]] || continue
      # Not link/infiniband and link/loopback. A backslash and blanks precede the kind of a device; hardware has none.
      link=${BASH_REMATCH[1]%%'\    alias '*} && [[ $link == *'\    link/'[!il]* \
        && ${link//\\    @(link\/|prog\/|altname |vf |+([a-z])_slave |bond |team |vlan |veth )/} != *\\'    '[!\ ]* ]] && matching+=("$dev")
    done
    ((${#matching[@]})) || absent+=("with a default route and an address in ${given[i]} (a bridge must be given by its name)")
    joined "${matching[@]}" && ((${#matching[@]} > 1)) && notes+=$'\n'"warning: ${given[i]} in expectedDevs: stands for none of $REPLY; name one of them, or a narrower network"
    ((${#matching[@]} == 1)) && if [[ " ${given[*]} " == *" $REPLY "* ]]; then unset -v 'given[i]'; else given[i]=$REPLY; fi
  done
}

# @end@
# -> expected, the devices by which packets must leave; way: the first hop that leads out there
find_exit() {
  local line i
  # @if networks@
  ((family == 4)) && resolve_given
  # @end@
  expected=("${given[@]}") way='' permissions=() verdicts=()
  # @if ipv6@
  # shellcheck disable=SC2034 # find_exit_of_ipv6 uses it by its name.
  ((family == 4)) && ipv4_defaults=("${defaults[@]}")
  if ((family == 6)); then
    sort_routes "${defaults[@]}" && defaults=("${lines[@]}")
    ((${#given[@]})) || find_exit_of_ipv6 || defaults=()
  fi
  # @end@
  for line in "${defaults[@]}"; do
    own_default "$line" || continue
    for i in "${!hop_dev[@]}"; do
      # One that is dead is passed over by the kernel.
      [[ ${hop_state[i]} != dead && (${#expected[@]} == 0 || " ${expected[*]} " == *" ${hop_dev[i]} "*) ]] \
        && way="dev ${hop_dev[i]}${hop_gateway[i]:+ via ${hop_gateway[i]}}" && break 2
    done
  done
  [[ $way && ${#expected[@]} == 0 ]] && devices_of "$line" && expected=("${devs[@]}")
  for i in "${expected[@]}"; do permissions["/$i"]=yes; done
}

# Look at the next family: set `plain` to the answers for its parts. Succeed if all is fine.
prove() {
  local i questions='' all_fine=yes answers asked
  family=${families[0]} families=("${families[@]:1}")
  by_source='' starts=() ends=() addresses=() cidr_of=() blockers=() plain=() fates=() sourced=()
  # @if ipv6@
  ((family == 6)) && use_ipv6
  # @end@
  read_tables
  find_exit
  # @if auto list@
  ((family == 4 && ${#expected[@]})) && announce_fabric
  # @end@
  cut_cidrs
  ((${#starts[@]})) || return 0
  all_expected+=("${expected[@]}")
  ((${#expected[@]})) && printf -v questions 'link show dev %s\n' "${expected[@]/*\/*/lo}"
  printf -v REPLY 'route get fibmatch %s uid 0\n' "${addresses[@]}"
  lookup "$questions$REPLY"
  for i in "${!expected[@]}"; do
    [[ ${answers[i]} == '!'* ]] && absent+=("${expected[i]}")
    # A route has no flag for a carrier that it never saw.
    [[ ${answers[i]} == *[\<,]LOWER_UP[,\>]* || ${answers[i]} == '!'* ]] || permissions["/${expected[i]}"]=dead-end
  done
  answers=("${answers[@]:${#expected[@]}}")
  ((${#answers[@]} == ${#starts[@]})) \
    || { trouble="ip gave ${#answers[@]} answers to ${#starts[@]} questions; the last is: ${answers[*]: -1}" && cannot_prove; }
  # @if ipv6@
  ((family == 4)) || { asked=("${!starts[@]}") && stand_in; }
  # @end@
  plain=("${answers[@]}")
  for i in "${!plain[@]}"; do [[ ${verdicts[${plain[i]#* }]-} == fine ]] || is_fine "${plain[i]}" || all_fine=''; done
  # @if auto list@
  ((family == 6)) || find_taken
  # @end@
  [[ $all_fine && ! $by_source && ${#fates[@]} == 0 ]]
}

# At all, after a wait.
look_again() { exec "$BASH" -p "$0" "$seconds" {never}<&-; }

pass() {
  local dev way carriers=()
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
  for dev in "${all_expected[@]}"; do [[ ${carries["/$dev"]-} ]] && carriers+=("$dev") && unset -v 'carries[/$dev]'; done
  lines=("${!carries[@]}") && ((${#lines[@]} > 1)) && split "$(printf '%s\n' "${lines[@]}" | sort)"
  carriers+=("${lines[@]#/}")
  ((${#carriers[@]})) || carriers=("${all_expected[@]}")
  joined "${carriers[@]}"
  if ((${#cidrs[@]} == 1)); then way="leaves by $REPLY"; else way="leave by $REPLY"; fi
  joined "${cidrs[@]}"
  # @if after@
  [[ ! $refusals ]] || conclude_badly "${refusals#?}" "${refusals#?}$notes"
  # @end@
  conclude "$ok" "$detected" "$REPLY $way" 10 "$level" "$REPLY $way$notes"
}

use_ipv4
all_expected=() absent=()
# @if auto@
read_fabric
# Without InfiniBand no address will come.
if [[ $fabric_awaited ]] && ! compgen -G '/sys/class/infiniband/*' >/dev/null; then
  look 'link show' && [[ ${parts[0]} == *' link/infiniband '* ]] || fabric_awaited=''
fi
[[ $fabric_awaited ]] && fabric_notes=("warning: ${fabric_notes[0]}")
[[ $fabric_on ]] || fabric_notes=()
# @end@
printf -v notes %s "${fabric_notes[@]/#/$'\n'}"
refusals='' level=5
# @if after@
# Set `late` to the units that are neither up nor ended with success in this boot, `spared` to those that never will be.
look_at_units() {
  local unit block state result word IFS=$end
  of() { word=${block##*$'\n'"$1"=} word=${word%%$'\n'*}; }
  block=$(exec timeout 5 systemctl show --property=LoadState,ActiveState,SubState,Result,ConditionResult,ConditionTimestampMonotonic \
    --property=StateChangeTimestampMonotonic,InactiveEnterTimestampMonotonic -- "${after[@]}" 2>/dev/null)
  # shellcheck disable=SC2086 # A block for each unit.
  set -- ${block//$'\n\n'/$end} && late=() spared=()
  for unit in "${after[@]}"; do
    block=$'\n'${1-}$'\n' && shift
    of ActiveState && state=$word && of Result && result=$word && of StateChangeTimestampMonotonic
    # One that has failed is inactive, too, if it is stopped before its restart, or after `systemctl reset-failed`.
    [[ $state == @(active|reloading) \
      || $state$result$block == inactive?(success)$'\n'*InactiveEnterTimestampMonotonic="${word/#0/-}"$'\n'* ]] && continue
    of LoadState && [[ $state$block == inactive*ConditionResult=no* && $block == *ConditionTimestampMonotonic=[1-9]* \
      || $state$result == inactiveexec-condition ]] && word=skipped
    # A unit that is masked while it starts goes on.
    [[ $word == @(not-found|masked|skipped) && $state != *activating ]] \
      && spared+=("$unit: is $word, so routing is proven without it; see: systemctl status '$unit'") && continue
    if [[ $result != @(|success) ]]; then word=$result; else of SubState; fi
    late+=("$unit: is ${state:-unknown} (${word:-systemd gives no answer}), neither active nor ended with success in this boot; see: systemctl status '$unit'")
  done
}
look_at_units
while [[ ${late-} ]] && wait_a_second "$late"; do look_at_units; done
[[ $mode == STRICT ]] || { level=$((5 - (${#late[@]} > 0))) spared=("${late[@]}" "${spared[@]}") late=(); }
printf -v refusals %s "${late[@]/#/$'\n'}" && printf -v notes %s "$notes" "${spared[@]/#/$'\nwarning: '}"
# @end@
while prove; do ((${#families[@]})) || pass; done

# --- bash reads on if something is wrong, or if the source of a packet matters

# A rule that selects by source gets the source that the kernel chose after the answer without one. The second answer
# decides for a connected socket, the first for a datagram. Set sourced[part] to the first answer that is not fine.
ask_by_source() {
  local questions='' part dev source sources i parts_asked=() asked=() && local -A seen=()
  for part in "${!plain[@]}"; do
    [[ ${fates[part]-} || ${plain[part]} == '!'* ]] && continue
    devs=('')
    # A hash of the flow selects the next hop and so the source.
    [[ ${plain[part]} == *\\$'\t'* && ${plain[part]} != *' src '* ]] && devices_of "${plain[part]}"
    for dev in "${devs[@]}"; do parts_asked+=("$part") questions+="route get ${addresses[part]}${dev:+ oif $dev} uid 0"$'\n'; done
  done
  lookup "$questions" && questions=''
  for i in "${!parts_asked[@]}"; do
    part=${parts_asked[i]} sources=''
    [[ ${answers[i]} =~ ' src '([0-9a-f.:]+) ]] && sources=${BASH_REMATCH[1]}
    # @if ipv6@
    # A program may send from any address of the devices by which the packet may leave.
    if ((family == 6)); then
      REPLY='' && devices_of "${plain[part]}" && for dev in ${companions[part]-} "${devs[@]}"; do REPLY+=${globals["/$dev"]-}; done
      # The proof asks for the kernel's choice only where it may be another one.
      [[ $kind == unicast && ${plain[part]} != *' src '* && "$REPLY " == *" $sources "* ]] && sources=$REPLY || sources+=$REPLY
    fi
    # @end@
    for source in $sources; do
      [[ ${seen[$part $source]-} ]] && continue
      seen[$part $source]=yes asked+=("$part") questions+="route get fibmatch ${addresses[part]} from $source uid 0"$'\n'
    done
  done
  lookup "$questions"
  # @if ipv6@
  ((family == 4)) || stand_in
  # @end@
  for i in "${!asked[@]}"; do
    part=${asked[i]}
    is_fine "${answers[i]}" || sourced[part]=${sourced[part]-${answers[i]}}
    # @if auto list@
    ((family == 4)) && [[ ! ${fates[part]-} ]] && may_take "${starts[part]}" "${answers[i]}" && fates[part]=$network
    # @end@
  done
}

# Find the most specific route or rule that refuses an address: the kernel answers only with an error number.
blocker_of() { # address, the kernel's message -> REPLY
  local line word length found='' longest=-1
  for line in "${blockers[@]}"; do
    # shellcheck disable=SC2053 # A pattern.
    [[ $line == ${refusing[$2]-*} ]] || continue
    word=${line#* }
    [[ $line == [0-9]*:* ]] && word=default
    [[ $line == [0-9]*:*' to '* ]] && word=${line##*' to '}
    bounds "${word%% *}" && holds "$1" && ((length > longest)) && found=$line longest=$length
  done
  REPLY=${found%"${found##*[! ]}"}
}

report() { # number of the cidr, first address, the one after the last, answer: adds a finding
  local kind range='' by='' dev route=$4 cidr=${cidrs[$1]}
  case $4 in
    '!'*)
      kind=blocked
      [[ $4 == '!Network is unreachable' ]] && kind=no-route
      blocker_of "$2" "${4#!}" && route=$REPLY
      ;;
    # @if auto list@
    'announced '*) kind=announced route="${4#* }, announced by $fabric_source" ;;
    # @end@
    *)
      devices_of "$4"
      # It is not fine, so one of them is a dead end if all are allowed.
      by=${devs[*]} kind='dead-end'
      for dev in "${devs[@]}"; do is_allowed "$dev" || kind=overlap; done
      ((${#expected[@]})) || kind=unknown-exit
      [[ $4 == 'local '* ]] && kind='local'
      # @if ipv6@
      [[ $family == 6 ]] && route=${route/ pref +([a-z])/} route=${route/ expires +([0-9])sec/}
      # Before a list ip leaves no space.
      [[ $route == *[!\ ]\\$'\t'* ]] && route=${route/\\$'\t'/ }
      # @end@
      # A backslash and a tab precede each next hop; its state is not shown, as in the proof.
      route=${route//\\$'\t'/} route=${route% }
      if [[ $4 == *\\$'\t'* ]]; then
        route+=' nexthop' route=${route//+( dead| linkdown) nexthop/ nexthop} route=${route% nexthop}
      fi
      ;;
  esac
  # The kernel names it only once a rule of the node was changed.
  route=${route//' table local'/} route=${route/ nhid +([0-9])/}
  before "$3"
  for dev in "$2" "$REPLY"; do
    dotted "$dev"
    # @if ipv6@
    [[ $family == 6 ]] && shorten
    # @end@
    range+=-$REPLY
  done
  bad[$1]=$cidr kinds[$kind]=yes
  # Sorted by CIDR, then by order of discovery. Appending to one text would copy it for each finding.
  findings[$1 << 32 | ${#findings[@]}]="$cidr${names[$cidr]:+ (${names[$cidr]})}: $kind ${range:1}\
${by:+ by ${by// /,}}${route:+ ($route)}"
}

# Judge the parts of the family, those of a CIDR one after the other; adjacent ones with the same answer are one finding.
judge() {
  local part first='' last='' new answer='' of=''
  for part in "${!plain[@]}"; do
    new=${sourced[part]-}
    [[ $new ]] || is_fine "${plain[part]}" || new=${plain[part]}
    new=${fates[part]+announced }${fates[part]-$new}
    [[ $new && $new == "$answer" && ${cidr_of[part]} == "$of" ]] && last=${ends[part]} && continue
    [[ $answer ]] && report "$of" "$first" "$last" "$answer"
    answer=$new && [[ $new ]] && first=${starts[part]} last=${ends[part]} of=${cidr_of[part]}
  done
  [[ $answer ]] && report "$of" "$first" "$last" "$answer"
}

may_heal() { # -> REPLY: the finding, or its cause, that may go by itself
  REPLY="table main has no IPv$family default route"
  ((${#expected[@]})) || return 0
  [[ ${kinds[local]-}${kinds[blocked]-}${kinds[announced]-} ]] && return 1
  [[ ${absent-} ]] && REPLY="there is no network device $absent" && return
  REPLY=${findings[*]:0:1}
  [[ ! ${kinds[overlap]-} ]]
}

explain() { # -> REPLY
  local text most=10 && joined "${expected[@]}"
  text="${#bad[@]} of ${#cidrs[@]} expected CIDRs would not leave by $REPLY as a whole:"
  way="expected: ${way:-dev ${REPLY//, / or }, by which no default route leads out}"
  if ((!${#expected[@]})); then
    way="To give it one, see ${givers[family]}, or its network configuration" text="the node has no IPv$family default route"
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

# The rules and routes for which the kernel has a message. For an 'unreachable' rule it is that for 'no route'.
declare -A kinds=() refusing=(['Network is unreachable']='[0-9]*:*unreachable*' ['No route to host']='unreachable*'
  ['Permission denied']='*prohibit*' ['Invalid argument']='*blackhole*')
# What was expected by the first family with a finding.
findings=() bad=() first_family='' first_way='' first_expected=()
while :; do
  [[ $by_source ]] && ask_by_source
  # @if auto@
  ((${#fates[@]})) && date_fabric_source
  # @end@
  judge
  [[ ${#findings[@]} -gt 0 && ! $first_family ]] && first_family=$family first_way=$way first_expected=("${expected[@]}")
  ((${#families[@]})) || break
  prove
done
((${#findings[@]})) || pass
family=$first_family way=$first_way expected=("${first_expected[@]}")
((seconds < waits)) && may_heal && wait_a_second "$REPLY" && look_again
explain
printf -v lines '%s\n' "${findings[@]}"
conclude_badly "${lines%$'\n'}$refusals" "$REPLY$refusals$notes"
