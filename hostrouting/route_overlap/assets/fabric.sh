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
  if is_switched_on && fabric_on=yes && read_pool; then
    fabric_source=$fabric_pool
  else
    fabric_macs=() fabric_addresses=()
    fabric_notes=("no fabric is announced: $reason" "${fabric_notes[@]}")
  fi
}

# A function that fails has set `reason`.

refuse() { # reason
  reason=$1
  return 1
}

is_readable() { # path
  [[ -f $1 ]] || refuse "$1 is no regular file" || return
  [[ -r $1 ]] || refuse "$1 cannot be read"
}

is_switched_on() {
  local content lines line name blank='[[:space:]]*'
  local -A is_on=()
  is_readable "$fabric_configuration" || return
  # To the first NUL, or one byte more than the most, so that no file is too large.
  IFS= read -rd '' -n "$((fabric_most + 1))" content <"$fabric_configuration"
  ((${#content} <= fabric_most)) || refuse "$fabric_configuration is larger than 256 KiB" || return
  [[ $content == *OS.@(EnableRDMA|UpdateRdmaDriver|CheckRdmaDriver)* ]] || content=''
  split "$content"
  for line in ${lines[@]+"${lines[@]}"}; do
    ((${#line} <= fabric_longest)) || continue
    [[ $line =~ ^${blank}OS\.(EnableRDMA|UpdateRdmaDriver|CheckRdmaDriver)$blank=([^#]*) ]] || continue
    name=${BASH_REMATCH[1]} is_on[$name]=''
    [[ ${BASH_REMATCH[2]} =~ ^[\"\ ]*${blank}[yY]${blank}[\"\ ]*$ ]] && is_on[$name]=yes
  done
  [[ ${is_on[*]-} == *yes* ]] \
    || refuse "OS.EnableRDMA, OS.UpdateRdmaDriver and OS.CheckRdmaDriver are off in $fabric_configuration"
}

# The pool has records of 512 bytes for a key and 2048 for its value, both padded with NULs.
read_pool() { # -> fabric_macs, fabric_addresses
  local keys values i
  local -A found=()
  fabric_awaited=yes
  [[ -e $fabric_pool || -L $fabric_pool ]] || refuse "$fabric_pool does not exist yet" || return
  fabric_awaited=''
  is_readable "$fabric_pool" || return
  parse_records || read_odd_records || return
  for i in "${!keys[@]}"; do
    [[ ${keys[i]} != @(IPoIB_Data|NdDriverVersion) || ${found[${keys[i]}]+yes} ]] || found[${keys[i]}]=${values[i]}
  done
  [[ ! ${found[NdDriverVersion]-} ]] \
    || refuse "NdDriverVersion in $fabric_pool selects a driver that takes no addresses from there" || return
  [[ ${found[IPoIB_Data]+yes} ]] || fabric_awaited=yes
  [[ ! $fabric_awaited ]] || refuse "$fabric_pool has no IPoIB_Data yet" || return
  parse_pairs "${found[IPoIB_Data]}" "IPoIB_Data in $fabric_pool"
}

# Nearly always there is nothing but NULs after a key and after a value. Then the places of the keys and values are known,
# and together they are as long as all that the file has beside NULs. Fail if the pool has anything else.
parse_records() { # -> keys, values
  local content field i=0 skip=0 seen=0 first=0
  keys=() values=()
  while ((i < fabric_most / 2560)); do
    # A field ends at each NUL. The last one of a value is read, too: at the end of the pool it is the only one.
    mapfile -td '' -s "$skip" -n "$((first + 1))" field
    ((first == 0 || ${#field[@]})) || return
    ((${#field[@]} > first)) || break
    keys[i]=${field[first]}
    ((${#keys[i]} < 512)) || return
    mapfile -td '' -s "$((511 - ${#keys[i]}))" -n 1 field
    values[i]=${field-}
    ((${#values[i]} < 2047)) || return
    ((seen += ${#keys[i]} + ${#values[i]}, skip = 2046 - ${#values[i]}, first = 1, i += 1))
  done 2>/dev/null <"$fabric_pool"
  ((0 < i && i < fabric_most / 2560)) || return
  # Without the NULs. mapfile takes ten times as long.
  { content=$(<"$fabric_pool"); } 2>/dev/null && ((seen == ${#content}))
}

# The same by the bytes of the whole file, in which anything may be.
read_odd_records() { # -> keys, values
  local content='' i
  for i in 1 2 3; do
    # NULs become \1, and line ends blanks: neither belongs to a key or a pair.
    content=$(head -c "$((fabric_most + 1))" "$fabric_pool" 2>/dev/null | tr '\0\1\n' '\1  ')
    ((i == 3 || ${#content} > fabric_most || (${#content} && ${#content} % 2560 == 0))) && break
    # The daemon may be writing, and empties the pool before.
    [[ ${never-} ]] || exec {never}<> <(:)
    read -rt "$fabric_pause" -u "$never"
  done
  ((${#content} <= fabric_most)) || refuse "$fabric_pool is larger than 256 KiB" || return
  keys=() values=()
  for ((i = 0; i < ${#content} / 2560; i++)); do
    keys[i]=${content:i * 2560:512} values[i]=${content:i * 2560 + 512:2048}
    keys[i]=${keys[i]%%$'\1'*} values[i]=${values[i]%%$'\1'*}
  done
}

# shellcheck disable=SC2053,SC2206 # Patterns; split at each bar, and at each point.
parse_pairs() { # value of IPoIB_Data, its name -> fabric_macs, fabric_addresses
  # The bar at its end is for the last pair, if that is empty.
  local pairs pair mac octets address number=0 invalid='' IFS='|' value="$1|"
  local octet='@([0-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5])' quad
  quad=$octet.$octet.$octet.$octet
  pairs=($value)
  [[ ${pairs[0]} =~ ^NUMPAIRS:0*([0-9]+) ]] || refuse "$2 does not begin with NUMPAIRS and a number" || return
  [[ ${BASH_REMATCH[1]} == "$((${#pairs[@]} - 1))" ]] \
    || refuse "$2 has another number of pairs ($((${#pairs[@]} - 1))) than its NUMPAIRS says" || return
  IFS=.
  for pair in "${pairs[@]:1}"; do
    number=$((number + 1)) mac=${pair%%:*} value=${pair#*:}
    if [[ $pair != +([!:]):$quad ]]; then
      # Text may follow the address. A regular expression takes longer than all the rest.
      [[ $pair =~ ^[^:]+:([0-9]+\.[0-9]+\.[0-9]+\.[0-9]+) ]] \
        || refuse "$2 has no hardware address with an IPv4 address in its pair $number" || return
      value=${BASH_REMATCH[1]}
      [[ $value == $quad ]] || value=0.0.0.0
    fi
    octets=($value)
    ((address = octets[0] << 24 | octets[1] << 16 | octets[2] << 8 | octets[3]))
    [[ ${#mac} == 12 && $mac != *[!0-9A-F]* ]] || mac=''
    ((address)) || { invalid+=", $number" && continue; }
    fabric_macs+=("$mac") fabric_addresses+=("$address")
  done
  [[ $invalid ]] && fabric_notes+=("$2 has no IPv4 address in these of its pairs, which do not count: ${invalid#, }")
  ((${#fabric_addresses[@]})) || refuse "$2 has no addresses"
}

# Add to fabric_source when the pool was written; only a finding says it, and `stat` takes time. A date and no age: an
# unchanged verdict has an unchanged text, which is not logged again.
date_fabric_source() {
  local written
  [[ $fabric_source == "$fabric_pool" ]] && written=$(stat -Lc %Y "$fabric_pool" 2>/dev/null) || return 0
  TZ=UTC printf -v REPLY ', written %(%Y-%m-%d %H:%M UTC)T' "$written"
  fabric_source+=$REPLY
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
