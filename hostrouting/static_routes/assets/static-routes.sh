#!/bin/bash -p
# Installs the static routes of this node at every boot and before each start of a gated unit.
# Each `hostrouting apply` writes this file again from its config; `hostrouting reset` removes it.
#
#   static-routes.sh [now]        now: do not wait
#
# Exits 0 if every route below is in force and no other route has our protocol number. Otherwise it exits 1, keeps the
# changes that succeeded, and logs the reason for each route. It waits for a default route, a device or an address that
# may be late. A foreign route in the place of ours stays after it, and decides again once ours is removed.
set -u
set -f # ip's output has no patterns for file names.
export LC_ALL=C

# As ip prints them, in its order; a ? is looked up in the default routes.
count=@COUNT@
routes='
@ROUTES@'

# @SHARED@

waited=$folder/static-routes.waited # The seconds waited, and ok or failed: the check waits for the rest.
told=$folder/static-routes.told
second=0
absent=() # The routes that were not in force when this run began.

finish() { # exit status, priority, verdict
  local outcome=ok
  (($1)) && outcome=failed
  ((${#absent[@]})) && tell_repairs "$3"
  tell_verdict "$told" "$2" "$3"
  { printf '%s\n' "$second $outcome" >"$waited"; } 2>/dev/null
  exit "$1"
}

# Say in one line which routes are in force again, if the verdict is that of the last run, and so would not tell it.
tell_repairs() { # verdict
  local -A left=()
  local line repaired=()
  last_told "$told"
  [[ $last == "$1" ]] || return 0
  for line in "${todo[@]}"; do
    left["$line"]=yes
  done
  for line in "${absent[@]}"; do
    [[ ${left["$line"]-} ]] || repaired+=("$line")
  done
  case ${#repaired[@]} in
    0) ;;
    1) tell 4 "repaired: + ${repaired[0]}" ;;
    *) tell 4 "${#repaired[@]} routes were repaired, the first is: + ${repaired[0]}" ;;
  esac
}

cannot() {
  finish 1 3 "cannot see or change routes: $answer"
}

# Replace an unknown part in `wanted`, before another word or at the end of a line.
complete() { # unknown part, value
  wanted=${wanted//"$1"$'\n'/"$2"$'\n'}
  wanted=${wanted//"$1 "/"$2 "}
}

# Set `wanted` to the routes, with the unknown parts taken from the default routes, lowest metric first; set `missing` to
# the reason if they do not have one.
resolve() {
  local -A by_dev=()
  local line i dev first_dev=''
  wanted=$routes missing=''
  [[ $routes == *\?* ]] || return 0
  look 'route show table main exact default' || cannot
  split "$answer"
  for line in "${lines[@]}"; do
    own_default "$line" || continue
    first_dev=${first_dev:-$leads_out}
    for i in "${!hop_dev[@]}"; do
      dev=${hop_dev[i]}
      # `via inet6 ADDRESS` is a gateway of the other family. The slash is for a device with the name @ or *.
      [[ ${hop_gateway[i]} == inet6 || -n ${by_dev["/$dev"]+set} ]] && continue
      by_dev["/$dev"]=" dev $dev scope link"
      [[ ${hop_gateway[i]} ]] && by_dev["/$dev"]=" via ${hop_gateway[i]} dev $dev${hop_onlink[i]}"
    done
  done
  if [[ $wanted == *' dev ?'* ]]; then
    if [[ ! $first_dev ]]; then
      missing='table main has no IPv4 default route'
      return
    fi
    complete ' dev ?' " dev $first_dev"
  fi
  while [[ $wanted == *' via ? dev '* ]]; do
    dev=${wanted#*' via ? dev '}
    dev=${dev%%[ $'\n']*}
    if [[ -z ${by_dev["/$dev"]+set} ]]; then
      missing="no IPv4 default route leaves by $dev, so it has no gateway there"
      # No DHCP lease creates a device, but a driver may be late.
      ask "link show dev $dev" -force || cannot
      [[ $answer == *'does not exist'* ]] && missing="there is no network device $dev; correct its 'dev'"
      return
    fi
    complete " via ? dev $dev" "${by_dev["/$dev"]}"
  done
}

# Set `standing` to the routes with our protocol number.
read_ours() {
  look "route show table all proto $protocol" || cannot
  standing=$'\n'${answer// $'\n'/$'\n'}
}

resolve
read_ours
[[ ! $missing && $standing == "$wanted" ]] && finish 0 5 "routes in force: $count"

# --- bash reads on if something has to change

declare -A why=()   # The refusal of a route of `todo`, or of a deletion of `surplus`.
declare -A stale=() # The places with another route of ours than the wanted one: its deletion.
todo=() surplus=() # Routes that are not in force; deletions of our routes that are not wanted.

# Set REPLY to the deletion of the last parsed route. The protocol precedes the rest: ip accepts no option after
# `nexthop`.
deletion() {
  REPLY="route delete $kind $destination proto $protocol"
  ((metric)) && REPLY+=" metric $metric"
  # For a `local` route, ip assumes table local.
  [[ $elsewhere == *' table '* ]] || REPLY+=' table main'
  REPLY+=$rest
}

# Compare `wanted` with `standing`: fill todo, stale and surplus.
compare() {
  local -A wants=() has=()
  local line key near=() far=()
  todo=() surplus=() stale=()
  split "$wanted"
  todo=("${lines[@]}")
  if [[ $wanted == *' scope link'* ]]; then
    # On-link routes first: the gateways of others may be there.
    for line in "${lines[@]}"; do
      if [[ $line == *' scope link'* ]]; then near+=("$line"); else far+=("$line"); fi
    done
    todo=("${near[@]}" "${far[@]}")
  fi
  [[ $standing == $'\n' ]] && return
  for line in "${todo[@]}"; do
    parse_route "$line"
    wants["$destination $metric"]=$kind$rest
  done
  split "$standing"
  for line in "${lines[@]}"; do
    parse_route "$line"
    deletion
    key="$destination $metric"
    if [[ $elsewhere || -z ${wants["$key"]+set} || ${has["$key"]-} ]]; then
      surplus+=("$REPLY")
    elif [[ $kind$rest == "${wants["$key"]}" ]]; then
      has["$key"]=yes
      # The route before it decides in its place.
      [[ ${stale["$key"]-} ]] && surplus+=("${stale["$key"]}")
    else
      [[ ${stale["$key"]-} ]] || stale["$key"]=$REPLY
    fi
  done
  lines=("${todo[@]}") todo=()
  for line in "${lines[@]}"; do
    parse_route "$line"
    [[ ${has["$destination $metric"]-} ]] || todo+=("$line")
  done
}

# Run the ip commands in `$1`, one a line; set `refused` to the messages for the failed ones, by their number.
send() {
  local line said=''
  refused=()
  ask "$1" -force || cannot
  [[ $answer == *'Command failed -:'* ]] || return 0
  split "$answer"
  for line in "${lines[@]}"; do
    if [[ $line == 'Command failed -:'* ]]; then
      refused[${line##*:} - 1]=$said said=''
    else
      said+=${said:+; }$line
    fi
  done
}

# Add the routes of `todo`, and only then remove those of `surplus`: no packet meets an empty place. `ip route add` never
# overwrites a route; an occupied place is read first.
change() {
  local i batch lines=() taken=() added=("${todo[@]}")
  if ((${#stale[@]})); then
    added=()
    for line in "${todo[@]}"; do
      parse_route "$line"
      if [[ ${stale["$destination $metric"]-} ]]; then taken+=("$line"); else added+=("$line"); fi
    done
  fi
  if ((${#added[@]})); then
    printf -v batch "route add %s proto $protocol\\n" "${added[@]}"
    send "${batch}route show table all proto $protocol"
    standing=$'\n'${answer// $'\n'/$'\n'}
    [[ $standing == "$wanted" ]] && return
    for i in "${!refused[@]}"; do
      ((i < ${#added[@]})) || continue
      why["${added[i]}"]=${refused[i]}
      [[ ${refused[i]} == *'File exists'* ]] && taken+=("${added[i]}")
    done
  fi
  ((${#taken[@]})) && take "${taken[@]}"
  if ((${#surplus[@]})); then
    printf -v batch '%s\n' "${surplus[@]}"
    send "${batch%$'\n'}"
    for i in "${!refused[@]}"; do
      why["${surplus[i]}"]=${refused[i]}
    done
  fi
  read_ours
}

# Take occupied places: add our route before the existing one. Nothing is replaced, because the kernel would replace the
# first route of that moment, of any owner. The kernel's routes are never hidden. Our earlier route is removed afterwards.
take() { # routes
  local -A line_at=() first=() first_mark=() first_is=() own=() later=()
  local line key questions='' deletions='' batch='' i=0 sent=()
  for line in "$@"; do
    parse_route "$line"
    line_at["$destination $metric"]=$line
    questions+="route show table main exact $destination"$'\n'
  done
  # Each of these commands reads the whole table.
  (($# > 16)) && questions=$'route show table main\n'
  look "${questions%$'\n'}" || cannot
  split "$answer"
  for line in "${lines[@]}"; do
    parse_route "$line"
    key="$destination $metric"
    [[ ${line_at["$key"]-} && ! $elsewhere ]] || continue
    [[ $mark == kernel ]] && own["$key"]=${line% }
    if [[ ! ${first["$key"]-} ]]; then
      first["$key"]=${line% } first_mark["$key"]=$mark first_is["$key"]=$kind$rest
    elif [[ $mark == "$protocol" ]]; then
      deletion
      later["$key"]+=$REPLY$'\n'
    fi
  done
  for line in "$@"; do
    parse_route "$line"
    key="$destination $metric"
    if [[ ${own["$key"]-} ]]; then
      why["$line"]="the kernel's own route '${own["$key"]}' has this destination and metric, and is never \
overwritten; configure narrower destinations, or another metric"
      continue
    fi
    # The kernel does not move an existing route to the front.
    deletions+=${later["$key"]-}
    batch+="route prepend $line proto $protocol"$'\n'
    sent+=("$line")
  done
  [[ $batch ]] || return
  [[ $deletions ]] && send "${deletions%$'\n'}"
  send "${batch%$'\n'}"
  for line in "${sent[@]}"; do
    parse_route "$line"
    key="$destination $metric"
    if [[ ${refused[i]-} ]]; then
      why["$line"]=${refused[i]}
    elif [[ ${first_mark["$key"]-} == "$protocol" ]]; then
      surplus+=(${stale["$key"]+"${stale["$key"]}"})
    elif [[ ${first["$key"]-} && ${first_is["$key"]} != "$kind$rest" ]]; then
      tell 4 "$line is added before the foreign '${first["$key"]}', which decides again once ours is removed"
    fi
    i=$((i + 1))
  done
}

# Make `wanted` the routes in force, in a few rounds: a route may need another one, or its place may be occupied.
converge() {
  local last='' round
  why=()
  for round in 1 2 3 4; do
    compare
    ((${#absent[@]})) || absent=("${todo[@]}")
    ((${#todo[@]} + ${#surplus[@]})) || return 0
    [[ $round == 4 || $standing == "$last" ]] && return 1
    last=$standing
    change
    [[ $standing == "$wanted" ]] && return 0
  done
}

# Set REPLY to the reason to wait; empty if waiting cannot help.
reason_to_wait() {
  local line
  REPLY=$missing
  [[ $missing ]] && return
  for line in "${todo[@]}"; do
    case ${why["$line"]-} in
      *'Network is '* | *'No route to host'* | *'No such device'* | *'Cannot find device'* | *'is not up'* | *'invalid gateway'*)
        REPLY="$line: ${why["$line"]}"
        return
        ;;
    esac
  done
}

while true; do
  [[ ! $missing ]] && converge && todo=() && finish 0 5 "routes in force: $count"
  reason_to_wait
  [[ ! $REPLY ]] || ((second >= waits)) && break
  if ((second == 0)); then
    last_told "$told"
    # A message that the last bad verdict had is not repeated.
    [[ $last == *"$REPLY"* ]] || tell 4 "waiting up to $waits s: $REPLY"
  fi
  wait_a_second
  second=$((second + 1))
  resolve
  read_ours
done

verdict=''
[[ $missing ]] && verdict="no route was changed: $missing"
[[ $missing == *'default route'* ]] && verdict+="; see the log of the DHCP client or the network configuration"
for line in "${todo[@]}"; do
  verdict+="refused: $line: ${why["$line"]-it is not in force, although ip reported no error}"$'\n'
done
for line in "${surplus[@]}"; do
  verdict+="cannot be removed: $line: ${why["$line"]-it is still there}"$'\n'
done
finish 1 3 "${verdict%$'\n'}"
