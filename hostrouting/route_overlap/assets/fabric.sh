# --- the fabric that the cloud's agent will connect: the answer of hostrouting/route_overlap/fabric.py

fabric_configuration=/etc/waagent.conf
fabric_pool=/var/lib/hyperv/.kvp_pool_0
fabric_pause=0.1    # Seconds before a pool that ends within a record is read again.
fabric_most=262144  # Bytes of a file.
fabric_longest=1024 # Bytes of a line of the configuration.

# Set fabric_macs and fabric_addresses (numbers), an entry in both for each address that the agent will add with a /16
# network; fabric_source, which is empty if no fabric is announced; fabric_notes; fabric_on to `yes` if RDMA is switched
# on, and fabric_awaited if the agent would act, were the addresses in the pool. A MAC is as agent_mac returns it, and
# empty if no device can have it.
# shellcheck disable=SC2034
read_fabric() {
  local reason=''
  fabric_macs=() fabric_addresses=() fabric_notes=() fabric_source='' fabric_awaited='' fabric_on=''
  [[ -e $fabric_configuration || -L $fabric_configuration ]] || return 0
  is_switched_on && fabric_on=yes && read_pool && fabric_source=$fabric_pool && return
  fabric_macs=() fabric_addresses=() fabric_notes=("no fabric is announced: $reason" "${fabric_notes[@]}")
}

# A function that fails has set `reason`.

refuse() { reason=$1 && return 1; }

is_readable() { # path
  [[ -f $1 ]] || refuse "$1 is not a regular file" || return
  [[ -r $1 ]] || refuse "$1 cannot be read"
}

is_switched_on() {
  local content lines line name blank='[[:space:]]*' && local -A is_on=()
  is_readable "$fabric_configuration" || return
  # To the first NUL, or one byte more than the most, so that no file is too large.
  IFS= read -rd '' -n "$((fabric_most + 1))" content <"$fabric_configuration"
  ((${#content} <= fabric_most)) || refuse "$fabric_configuration is larger than 256 KiB" || return
  split "$content"
  for line in "${lines[@]}"; do
    [[ ${#line} -le fabric_longest && $line =~ ^${blank}OS\.(EnableRDMA|UpdateRdmaDriver|CheckRdmaDriver)$blank=([^#]*) ]] || continue
    name=${BASH_REMATCH[1]} is_on[$name]=''
    [[ ${BASH_REMATCH[2]} =~ ^[\"\ ]*${blank}[yY]${blank}[\"\ ]*$ ]] && is_on[$name]=yes
  done
  [[ ${is_on[*]-} == *yes* ]] \
    || refuse "OS.EnableRDMA, OS.UpdateRdmaDriver and OS.CheckRdmaDriver are off in $fabric_configuration"
}

# The pool has records of 512 bytes for a key and 2048 for its value, both padded with NULs.
read_pool() { # -> fabric_macs, fabric_addresses
  local content='' key value i && local -A found=()
  fabric_awaited=yes
  [[ -e $fabric_pool || -L $fabric_pool ]] || refuse "$fabric_pool does not exist yet" || return
  fabric_awaited=''
  is_readable "$fabric_pool" || return
  for i in 1 2 3; do
    # NULs become \2, and line ends blanks: neither belongs to a key or a pair. A subshell for the text would take longer.
    IFS= read -rN "$((fabric_most + 1))" content < <(exec tr '\0\1\2\n' '\2   ' 2>/dev/null <"$fabric_pool")
    ((i == 3 || ${#content} > fabric_most || (${#content} && ${#content} % 2560 == 0))) && break
    # The daemon may be writing, and empties the pool before.
    pause_for "$fabric_pause"
  done
  ((${#content} <= fabric_most)) || refuse "$fabric_pool is larger than 256 KiB" || return
  for ((i = 0; i + 2560 <= ${#content}; i += 2560)); do
    key=${content:i:512} key=${key%%$'\2'*} value=${content:i + 512:2048}
    [[ $key != @(IPoIB_Data|NdDriverVersion) || ${found[$key]+yes} ]] || found[$key]=${value%%$'\2'*}
  done
  [[ ! ${found[NdDriverVersion]-} ]] \
    || refuse "NdDriverVersion in $fabric_pool selects a driver that takes no addresses from there" || return
  [[ ${found[IPoIB_Data]+yes} ]] || fabric_awaited=yes
  [[ ! $fabric_awaited ]] || refuse "$fabric_pool has no IPoIB_Data yet" || return
  parse_pairs "${found[IPoIB_Data]}" "IPoIB_Data in $fabric_pool"
}

# shellcheck disable=SC2053,SC2206 # Patterns; split at each bar, and at each point.
parse_pairs() { # value of IPoIB_Data, its name -> fabric_macs, fabric_addresses
  # The bar at its end is for the last pair, if that is empty.
  local pairs octets number invalid='' IFS='|' value="$1|" octet='@([0-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5])'
  pairs=($value)
  [[ ${pairs[0]} =~ ^NUMPAIRS:0*([0-9]+) ]] || refuse "$2 does not begin with NUMPAIRS and a number" || return
  [[ ${BASH_REMATCH[1]} == "$((${#pairs[@]} - 1))" ]] \
    || refuse "$2 has another number of pairs ($((${#pairs[@]} - 1))) than its NUMPAIRS says" || return
  IFS=.
  for ((number = 1; number < ${#pairs[@]}; number++)); do
    # Text may follow the address.
    [[ ${pairs[number]} =~ ^([^:]+):([0-9]+\.[0-9]+\.[0-9]+\.[0-9]+) ]] \
      || refuse "$2 has no hardware address with an IPv4 address in its pair $number" || return
    octets=(${BASH_REMATCH[2]}) value=${BASH_REMATCH[1]}
    [[ ${BASH_REMATCH[2]} == $octet.$octet.$octet.$octet && ${BASH_REMATCH[2]} != 0.0.0.0 ]] || { invalid+=", $number" && continue; }
    [[ ${#value} == 12 && $value != *[!0-9A-F]* ]] || value=''
    fabric_macs+=("$value") fabric_addresses+=("$((octets[0] << 24 | octets[1] << 16 | octets[2] << 8 | octets[3]))")
  done
  [[ $invalid ]] && fabric_notes+=("$2 has no IPv4 address in these of its pairs, which do not count: ${invalid#, }")
  ((${#fabric_addresses[@]})) || refuse "$2 has no addresses"
}

# Add to fabric_source when the pool was written; only a finding says it, and `stat` takes time. A date and no age: an
# unchanged verdict has an unchanged text, which is not logged again.
date_fabric_source() {
  local written
  [[ $fabric_source == "$fabric_pool" ]] && written=$(stat -Lc %Y "$fabric_pool" 2>/dev/null) || return 0
  TZ=UTC printf -v REPLY ', written %(%Y-%m-%d %H:%M UTC)T' "$written" && fabric_source+=$REPLY
}

# Set REPLY to the hardware address of a device in the form of the pool; fail if the agent takes no such device.
agent_mac() { # device, hardware address as ip prints it
  local octets IFS=:
  if [[ $1 != ib[[:alnum:]_]* ]]; then
    [[ $2 == ??:??:??:??:??:?? ]] && REPLY=${2//:/} && REPLY=${REPLY^^}
    return
  fi
  # shellcheck disable=SC2206 # Split at the colons.
  octets=(${2^^})
  # The agent's pattern wants something before the last eight octets.
  ((${#octets[@]} > 8)) && printf -v REPLY %s "${octets[@]: -8:3}" "${octets[@]: -3}"
}
