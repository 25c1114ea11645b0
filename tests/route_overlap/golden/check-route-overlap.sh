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
  'localdns'
  'antrea-gw0'
  'weave'
  'ovn-k8s-mp0'
  'genev_sys_*'
  'unbounded0'
  'wg518*'
  'geneve0'
  'vxlan0'
  'ipip0'
  'mesh*'
  'veth[0-9]?'
)
# Devices by which they must leave; none stands for those of the default route.
expected=(
)
# The names that presets give to the addresses that they expect.
declare -A names=(
)
# Networks that will be connected.
fabric_networks=(
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

# Report the verdict of a run. The journal gets it only if it differs from the last one: the timer of watch, and the
# starts of gates, would repeat it for ever.
tell_verdict() { # file with the last verdict, priority, lines
  last_told "$1"
  [[ ${JOURNAL_STREAM-} && $last == "$3" ]] && return 0
  tell "$2" "$3"
  [[ ${JOURNAL_STREAM-} ]] && { printf %s "$3" >"$1"; } 2>/dev/null
  return 0
}

last_told() { # file with the last verdict -> last
  last=''
  [[ ${JOURNAL_STREAM-} && -r $1 ]] && IFS= read -rd '' last <"$1"
  return 0
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
# --- the fabric that the cloud's agent will connect: the answer of hostrouting/route_overlap/fabric.py

fabric_configuration=/etc/waagent.conf
fabric_pool=/var/lib/hyperv/.kvp_pool_0
fabric_uptime=/proc/uptime
fabric_pause=0.1    # Seconds before a pool that ends within a record is read again.
fabric_most=262144  # Bytes of a file.
fabric_longest=1024 # Bytes of a line of the configuration.

# Set fabric_macs and fabric_addresses (numbers), an entry in both for each address that the agent will add with a /16
# network; fabric_source, which is empty if no fabric is announced; fabric_notes; fabric_on to `yes` if RDMA is switched
# on, and fabric_awaited if the agent would act, were the addresses in the pool. A MAC is as agent_mac returns it, and
# empty if no device can have it.
# shellcheck disable=SC2034
read_fabric() {
  local reason='' library=/var/lib/waagent
  fabric_macs=() fabric_addresses=() fabric_notes=() fabric_source='' fabric_awaited='' fabric_on=''
  is_there "$fabric_configuration" || return 0
  if is_switched_on && fabric_on=yes && check_rdma_addresses && read_pool; then
    fabric_source=$fabric_pool
  else
    fabric_macs=() fabric_addresses=()
    fabric_notes=("no fabric is announced: $reason" "${fabric_notes[@]}")
  fi
}

# A function that fails has set `reason`.

is_there() { # path
  [[ -e $1 || -L $1 ]]
}

is_readable() { # path
  if [[ ! -f $1 ]]; then
    reason="$1 is no regular file"
  elif [[ ! -r $1 ]]; then
    reason="$1 cannot be read"
  fi
  [[ ! $reason ]]
}

read_text() { # path -> content: to the first NUL, or one byte more than the most, so that no file is too large
  IFS= read -rd '' -n "$((fabric_most + 1))" content <"$1"
  ((${#content} <= fabric_most))
}

# shellcheck disable=SC2295 # A class of characters is meant as a pattern.
strip() { # text, characters -> REPLY
  REPLY=$1
  REPLY=${REPLY#"${REPLY%%[!$2]*}"}
  REPLY=${REPLY%"${REPLY##*[!$2]}"}
}

is_switched_on() { # -> library
  local content lines line name
  local setting='^[[:space:]]*(OS\.EnableRDMA|OS\.UpdateRdmaDriver|OS\.CheckRdmaDriver|Lib\.Dir)[[:space:]]*='
  local -A settings=()
  is_readable "$fabric_configuration" || return
  if ! read_text "$fabric_configuration"; then
    reason="$fabric_configuration is larger than 256 KiB"
    return 1
  fi
  if [[ $content == *OS.@(EnableRDMA|UpdateRdmaDriver|CheckRdmaDriver)* ]]; then
    split "$content"
    for line in "${lines[@]}"; do
      [[ ${#line} -le $fabric_longest && $line =~ $setting ]] || continue
      name=${BASH_REMATCH[1]} line=${line:${#BASH_REMATCH[0]}}
      strip "${line%%#*}" '" '
      strip "$REPLY" '[:space:]'
      settings[$name]=$REPLY
      [[ $REPLY == None ]] && unset "settings[$name]"
    done
  fi
  library=${settings[Lib.Dir]-$library}
  for name in EnableRDMA UpdateRdmaDriver CheckRdmaDriver; do
    [[ ${settings[OS.$name]-} == [yY] ]] && return 0
  done
  reason="OS.EnableRDMA, OS.UpdateRdmaDriver and OS.CheckRdmaDriver are off in $fabric_configuration"
  return 1
}

# The agent needs the RDMA addresses in SharedConfig.xml. If that cannot be read, it counts as if it had them.
check_rdma_addresses() {
  local content present='' path=$library/SharedConfig.xml
  if [[ $library != /* || ${#library} -gt 255 || $library == *[!\ -~]* ]]; then
    path="SharedConfig.xml in Lib.Dir of $fabric_configuration"
  elif [[ -f $path && -r $path ]] && read_text "$path"; then
    look_for_rdma_addresses
  fi
  if [[ $present == no ]]; then
    reason="$path has no rdmaIPv4Address and rdmaMacAddress in its first Instance"
    return 1
  fi
  [[ $present ]] || fabric_notes+=("$path cannot be read, so its RDMA addresses count as there")
}

look_for_rdma_addresses() { # -> present: yes or no, and empty if the content is incomplete
  local tags tag section_end='' IFS='<' blank=$'[ \t\r\n]'
  local value="$blank*=$blank*(\"[^\"]|'[^'])"
  # No value may have a `<`, so each begins a tag; the text after it does not matter.
  content+=' '
  # shellcheck disable=SC2206 # Split at each of them.
  tags=($content)
  for tag in "${tags[@]:1}"; do
    if [[ ! $section_end ]]; then
      case $tag in
        '!--'*) section_end='-->' ;;
        '![CDATA['*) section_end=']]>' ;;
        '?'*) section_end='?>' ;;
      esac
    fi
    if [[ $section_end ]]; then
      [[ $tag == *"$section_end"* ]] && section_end=''
    elif [[ $tag == Instance[$' \t\r\n/>']* ]]; then
      [[ $tag == *'>'* ]] || return
      present=no
      [[ $tag =~ ${blank}rdmaIPv4Address$value && $tag =~ ${blank}rdmaMacAddress$value ]] && present=yes
      return
    elif [[ $tag == '/SharedConfig>'* ]]; then
      present=no
      return
    fi
  done
}

# The pool has records of 512 bytes for a key and 2048 for its value, both padded with NULs.
read_pool() { # -> fabric_macs, fabric_addresses
  local keys values i
  local -A found=()
  if ! is_there "$fabric_pool"; then
    reason="$fabric_pool does not exist yet" fabric_awaited=yes
    return 1
  fi
  is_readable "$fabric_pool" || return
  parse_records || read_odd_records || return
  for i in "${!keys[@]}"; do
    case ${keys[i]} in
      IPoIB_Data | NdDriverVersion) [[ ${found[${keys[i]}]+yes} ]] || found[${keys[i]}]=${values[i]} ;;
    esac
  done
  if [[ ${found[NdDriverVersion]-} ]]; then
    reason="NdDriverVersion in $fabric_pool selects a driver that takes no addresses from there"
  elif [[ ! ${found[IPoIB_Data]+yes} ]]; then
    reason="$fabric_pool has no IPoIB_Data yet" fabric_awaited=yes
  else
    parse_pairs "${found[IPoIB_Data]}"
  fi
  [[ ! $reason ]]
}

# Nearly always there is nothing but NULs after a key and after a value. Then the places of the keys and values are known,
# and together they are as long as all that the file has beside NULs. Fail if the pool has anything else.
parse_records() { # -> keys, values
  local content field value i=0 skip=0 seen=0 first=0
  keys=() values=()
  # Without the NULs. mapfile takes ten times as long.
  { content=$(<"$fabric_pool"); } 2>/dev/null || return
  while ((i < fabric_most / 2560)); do
    # A field ends at each NUL. The last one of a value is read, too: at the end of the pool it is the only one.
    mapfile -td '' -s "$skip" -n "$((first + 1))" field
    ((first == 0 || ${#field[@]})) || return
    ((${#field[@]} > first)) || break
    keys[i]=${field[first]}
    ((${#keys[i]} < 512)) || return
    mapfile -td '' -s "$((511 - ${#keys[i]}))" -n 1 field
    value=${field-}
    ((${#value} < 2047)) || return
    values[i]=$value
    ((seen += ${#keys[i]} + ${#value}, skip = 2046 - ${#value}, first = 1, i += 1))
  done 2>/dev/null <"$fabric_pool"
  ((0 < i && i < fabric_most / 2560 && seen == ${#content}))
}

# The same by the bytes of the whole file, in which anything may be.
read_odd_records() { # -> keys, values
  local content fields i size IFS=' '
  for i in 1 2 3; do
    pool_status
    if [[ $REPLY != +([0-9])' '?(-)+([0-9]) ]]; then
      reason="$fabric_pool cannot be read"
      return 1
    fi
    size=${REPLY% *}
    ((i == 3 || (size && size % 2560 == 0) || size > fabric_most)) && break
    # The daemon may be writing, and empties the pool before.
    [[ ${never-} ]] || exec {never}<> <(:)
    read -rt "$fabric_pause" -u "$never"
  done
  if ((size > fabric_most)); then
    reason="$fabric_pool is larger than 256 KiB"
    return 1
  fi
  ((size % 2560)) && fabric_notes+=("$fabric_pool ends within a record, which does not count")
  keys=() values=() IFS=$'\n'
  { content=$(<"$fabric_pool"); } 2>/dev/null
  [[ $content == *@(IPoIB_Data|NdDriverVersion)* ]] || return 0
  mapfile -td '' fields 2>/dev/null <"$fabric_pool"
  # NULs become line ends and line ends blanks, neither of which belongs to a key or a pair.
  [[ $content == *$'\n'* || ${fields[*]: -1} == *$'\n' ]] && fields=("${fields[@]//$'\n'/ }")
  content="${fields[*]}"$'\n'
  for ((i = 0; i < size / 2560; i++)); do
    keys[i]=${content:i * 2560:512} values[i]=${content:i * 2560 + 512:2048}
    keys[i]=${keys[i]%%$'\n'*} values[i]=${values[i]%%$'\n'*}
  done
}

pool_status() { # -> REPLY: its size and the time of its last change
  REPLY=$(stat -Lc '%s %Y' "$fabric_pool" 2>&1)
}

parse_pairs() { # value of IPoIB_Data -> fabric_macs, fabric_addresses
  # The bar at its end is for the last pair, if that is empty.
  local pairs pair mac address number=0 invalid=() IFS='|' value="$1|" name="IPoIB_Data in $fabric_pool"
  local octet='(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])'
  # shellcheck disable=SC2206 # Split at each bar.
  pairs=($value)
  if [[ ! ${pairs[0]} =~ ^NUMPAIRS:0*([0-9]+) ]]; then
    reason="$name does not begin with NUMPAIRS and a number"
    return
  elif [[ ${BASH_REMATCH[1]} != "$((${#pairs[@]} - 1))" ]]; then
    reason="$name has another number of pairs ($((${#pairs[@]} - 1))) than its NUMPAIRS says"
    return
  fi
  for pair in "${pairs[@]:1}"; do
    number=$((number + 1)) mac=${pair%%:*}
    plain_address "${pair#*:}"
    if [[ ! $mac ]] || ((!address)); then
      if [[ $pair =~ ^[^:]+:$octet\.$octet\.$octet\.$octet($|[^0-9]) ]]; then
        address=$((BASH_REMATCH[1] << 24 | BASH_REMATCH[2] << 16 | BASH_REMATCH[3] << 8 | BASH_REMATCH[4]))
      elif [[ ! $pair =~ ^[^:]+:[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+ ]]; then
        reason="$name has no hardware address with an IPv4 address in its pair $number"
        return
      fi
    fi
    [[ ${#mac} == 12 && $mac != *[!0-9A-F]* ]] || mac=''
    if ((address)); then
      fabric_macs+=("$mac") fabric_addresses+=("$address")
    else
      invalid+=("$number")
    fi
  done
  if ((${#invalid[@]})); then
    printf -v value ', %s' "${invalid[@]}"
    fabric_notes+=("$name has no IPv4 address in these of its pairs, which do not count:${value#,}")
  fi
  ((${#fabric_addresses[@]})) || reason="$name has no addresses"
}

# Without a regular expression, which takes longer than all the rest.
plain_address() { # text -> address: 0 if it is anything but the address alone
  local octets IFS=.
  address=0
  [[ ${#1} -le 15 && $1 == [0-9]*.[0-9]*.[0-9]*.[0-9]* && $1 != *[!0-9.]* ]] || return 0
  # shellcheck disable=SC2206 # Split at each point.
  octets=($1)
  ((${#octets[@]} == 4)) || return 0
  address=$((10#${octets[0]} << 24 | 10#${octets[1]} << 16 | 10#${octets[2]} << 8 | 10#${octets[3]}))
  # An octet that is too large or has a leading zero gives another text.
  printf -v REPLY '%d.%d.%d.%d' $((address >> 24 & 255)) $((address >> 16 & 255)) $((address >> 8 & 255)) $((address & 255))
  [[ $1 == "$REPLY" ]] || address=0
}

# Add to fabric_source when the pool was written; only a finding says it, and `stat` takes time. A date and no age: an
# unchanged verdict has an unchanged text, which is not logged again.
date_fabric_source() {
  local up='' written
  [[ $fabric_source == "$fabric_pool" ]] || return 0
  pool_status
  written=${REPLY#* }
  [[ $REPLY == +([0-9])' '?(-)+([0-9]) ]] || return 0
  TZ=UTC printf -v REPLY ', written %(%Y-%m-%d %H:%M UTC)T' "$written"
  [[ -r $fabric_uptime ]] && IFS=. read -r up _ <"$fabric_uptime"
  [[ $up == +([0-9]) ]] && ((EPOCHSECONDS - written > up)) && REPLY+=', in an earlier boot'
  fabric_source+=$REPLY
}

# Set REPLY to the hardware address of a device in the form of the pool; empty if the agent takes no such device.
agent_mac() { # device, hardware address as ip prints it
  local octets IFS=:
  REPLY=''
  if [[ $1 != ib[[:alnum:]_]* ]]; then
    [[ $2 == ??:??:??:??:??:?? ]] && REPLY=${2//:/} && REPLY=${REPLY^^}
    return 0
  fi
  # shellcheck disable=SC2206 # Split at the colons.
  octets=(${2^^})
  # The agent's pattern wants something before the last eight octets.
  ((${#octets[@]} > 8)) && printf -v REPLY %s "${octets[@]: -8:3}" "${octets[@]: -3}"
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
  devices=()
  if ((${#fabric_networks[@]} + ${#fabric_addresses[@]})); then
    # The devices, and the routes around the roots.
    printf -v REPLY '\nroute show table all match %s' "${roots[@]}"
    questions+=$'\nroute show table local exact 127.0.0.0\nlink show type vrf\nlink show\naddr show'$REPLY
  fi
  look $'route show default\nrule show'"$questions" || cannot_prove
  split "$answer"
  for line in "${lines[@]}"; do
    case $line in
      [0-9]*:$'\t'*)
        rules_seen=yes
        read_rule "$line"
        ;;
      [0-9]*': '*) devices+=("$line") ;; # a device, or an address with its device
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
        own=${line#*' link/'} own=${own#* }
        agent_mac "$device" "${own%% *}"
        [[ $REPLY ]] && mac_of[$REPLY]+=" $device"
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
  read_fabric
  # Any later reading comes a second after it.
  fabric_pause=0
  read_tables
}

seconds=''
read_node
until [[ $default ]] || ! may_wait; do
  wait_a_second
  read_node
done
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

if [[ $default && ${#expected[@]} == 0 ]]; then
  devices_of "$default"
  expected=("${devs[@]}")
fi
if ((${#expected[@]})); then
  for dev in "${expected[@]}"; do
    permissions["/$dev"]=yes
  done
  assume_fabric
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
  ((${#announced[@]})) && find_announced
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
    if search +local "${starts[part]}" || search +main "${starts[part]}"; then
      bounds "${with_source[i]}"
      walk_rules "${starts[part]}" "$low"
    fi
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
  ((${#fates[@]})) && date_fabric_source
  judge
fi
((${#findings[@]})) || pass
explain
printf -v lines '%s\n' "${findings[@]}"
conclude_badly "${lines%$'\n'}" "$REPLY$notes"
