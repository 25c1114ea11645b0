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
