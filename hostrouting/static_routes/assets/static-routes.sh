#!/bin/bash -p
# Installs the static routes of this node at every boot and before each start of a gated unit.
# Each apply of hostrouting writes this file again from its config; `hostrouting reset` removes it.
#
#   static-routes.sh [now]        now: do not wait
#
# Exits 10 if every route below is in force and no other route has hostrouting's protocol. Otherwise it exits 11, keeps the
# changes that succeeded, and logs the reason for each route; with any other status it could not look, or was cut. It waits
# for a default route, a device or an address that may be late. It changes no foreign route: one in the place of a route below stays after it, and decides again once that
# is removed. What takes more than a few looks at the tables it leaves to an apply, and to watch.
# ip's output has no patterns for file names.
set -fu
export LC_ALL=C

# As ip prints them, in its order and with a blank at the end; a ? is looked up in the default routes.
routes_of[4]='
@ROUTES@'
# The commands that list their places in the order of the kernel: a node may have a million other routes.
tables[4]='@TABLE@' counts[4]=@COUNT@
# The devices by which the node left when its routing was last right: they precede a default route that came later.
exits[4]='@EXIT@'
# @if ipv6@
routes_of[6]='
@ROUTES6@'
tables[6]='@TABLE6@' counts[6]=@COUNT6@
exits[6]='@EXIT6@'
# @end@

# @SHARED@

told=$folder/static-routes.told total=0 verdict='' repaired=() boots=yes open='' families=("${!routes_of[@]}")
[[ ${routes_of[*]} =~ \? ]] && open=yes
# Later starts in this boot do not wait.
[[ -e $told || ${1-} == now ]] && waits=0 boots=''

# Set `wanted` to the routes of the family, with the unknown parts taken from the default routes, lowest metric first.
resolve() { # default routes
  local -A by_dev=()
  # shellcheck disable=SC2034 # Of IPv6, find_exit_of_ipv6 uses them by their names.
  local line i dev hops first_dev='' pin='' gateway='' link=' scope link' expected=() defaults=()
  split "${routes_of[$family]}" && wanted=("${lines[@]% }")
  [[ $open ]] || return 0
  split "$1"
  # @if ipv6@
  # shellcheck disable=SC2034
  if ((family == 4)); then ipv4_defaults=("${lines[@]}"); else link='' && sort_routes "${lines[@]}" && defaults=("${lines[@]}"); fi
  # @end@
  for line in "${lines[@]}"; do
    own_default "$line" || continue
    hops=("${!hop_dev[@]}")
    # @if ipv6@
    # IPv6 has no order of next hops, so the first as text counts, as in an apply.
    ((${#hops[@]} > 1 && family == 6)) && split "$(for i in "${hops[@]}"; do
      printf '%sdev %s %s\n' "${hop_gateway[i]:+via ${hop_gateway[i]} }" "${hop_dev[i]}" "$i"; done | sort)" && hops=("${lines[@]##* }")
    # @end@
    for i in "${hops[@]}"; do
      dev=${hop_dev[i]}
      [[ $first_dev || ${hop_state[i]} == dead ]] || first_dev=$dev
      # The slash is for a device with the name @ or *.
      [[ ${by_dev["/$dev"]-} ]] && continue
      [[ $dev != "${exits[family]}" || ${hop_state[i]} == dead ]] || pin=$dev gateway=${hop_gateway[i]}
      by_dev["/$dev"]=" dev $dev$link"
      [[ ${hop_gateway[i]} ]] && by_dev["/$dev"]=" via ${hop_gateway[i]} dev $dev${hop_onlink[i]}"
    done
  done
  # @if ipv6@
  # A router in the fabric may advertise a better default route: by it, the check would find the routes.
  [[ $family == 6 && $first_dev ]] && find_exit_of_ipv6 && [[ ${by_dev["/${expected[0]}"]-} ]] && first_dev=${expected[0]}
  # @end@
  # While it is up, with a carrier, and its gateway is not FAILED.
  [[ $pin && $'\n'${parts[4]} =~ $'\n'[0-9]+': '"$pin"(@[^ ]*)?': <'([^>]*,)?LOWER_UP[,\>] \
    && $'\n'${parts[5]} != *$'\n'"$gateway dev $pin "* ]] && first_dev=$pin
  [[ $first_dev ]] && wanted=("${wanted[@]/' dev ?'/" dev $first_dev"}")
  for dev in "${!by_dev[@]}"; do
    wanted=("${wanted[@]/%" via ? dev ${dev#/}"/"${by_dev["$dev"]}"}")
    wanted=("${wanted[@]/" via ? dev ${dev#/} "/"${by_dev["$dev"]} "}")
  done
}

# Run the commands in `batch`, and note each refusal in `why`, for the route or the deletion; then read the places, as
# parts[2], and all routes of hostrouting, as parts[3].
carry_out() {
  local line n
  [[ $batch ]] && why=()
  # ip finds the default routes only by a dump of the whole table.
  look "$batch" "${open:+route show table main exact default}" "${tables[$family]}" "route show table all proto $protocol" \
    "${exits[$family]:+link show up}" "${exits[$family]:+neigh show nud failed}" \
    || finish 12 3 "cannot see or change routes: $trouble"
  read_answers && ((${#failed[@]})) && split "$batch"
  for n in "${!failed[@]}"; do
    line=${lines[n - 1]#route @(add|prepend) } && why["${line%" proto $protocol"}"]=${failed[n]}
  done
  # @if ipv6@
  parts[2]=${parts[2]//' pref medium'/} parts[3]=${parts[3]//' pref medium'/}
  # @end@
}

# Run the commands in `batch`; succeed if then table main has every wanted route, as the first of its place, and no table
# another route of hostrouting. Table main and the wanted routes have one order.
is_right() {
  local line word n=0 mark=" proto $protocol"
  carry_out
  # Mostly they are all routes of hostrouting, which ip lists without the protocol. Then table main has all of them, and
  # other routes in their places would make that list longer. Not where a route lacks a part: IPv6 ones follow the IPv4
  # default routes, which `resolve` reads.
  [[ ! $open && $'\n'${parts[3]} == "${routes_of[$family]}" && ${#parts[2]} == $((${#parts[3]} + counts[family] * ${#mark})) ]] && return
  resolve "${parts[1]}"
  split "${parts[2]}"
  for line in "${lines[@]}"; do
    if [[ $line == *"$mark "* ]]; then
      [[ ${line/"$mark "/ } == "${wanted[n]-} " ]] || return
      n=$((n + 1))
    else
      destination_of "$line"
      [[ ${wanted[n]-} != "$word "* ]] || return
    fi
  done
  split "${parts[3]}"
  ((n == ${#wanted[@]} && n == ${#lines[@]}))
}

# Take the next family whose routes are not in force at once, or end if there is none. Of a family are noted: the routes that
# were not in force at first, the foreign route that decided before each of them, the refusals of routes and deletions, and
# what to do about them.
begin() {
  local batch=''
  if ((!${#families[@]})); then
    ((${#repaired[@]})) && repaired=("repaired: + ${repaired[0]}${repaired[1]+, and $((${#repaired[@]} - 1)) more}")
    if [[ $verdict ]]; then finish 11 3 "${verdict%$'\n'}"; else finish 10 5 "routes in force: $total"; fi
  fi
  declare -gA hidden=() why=() steps=()
  family=${families[0]} families=("${families[@]:1}") absent=() todo=() surplus=()
  total=$((total + counts[family]))
  # At a boot the places are empty. An addition changes no route, and of IPv6 a hidden one would remain.
  [[ ! $boots || $family == 6 || $open ]] \
    || { split "${routes_of[4]}" && ((${#lines[@]})) && printf -v batch "route add %sproto $protocol\n" "${lines[@]}"; }
  [[ ! $boots || $batch ]] && is_right && begin
}

begin

# --- bash reads on if a family is not right at once

why_open() { # a route that no default route completes -> reason
  local dev=${1#*' dev '}
  dev=${dev%% *} reason="no IPv$family default route leaves by $dev, so it has no gateway there"
  [[ $dev == '?' ]] && reason="table main has no IPv$family default route"
  steps["$1"]="; see ${givers[family]}, or its network configuration"
  # No DHCP lease creates a device, but a driver may be late.
  [[ $dev == '?' || $(</proc/net/dev) == *[$'\n ']"$dev:"* ]] && return
  reason="there is no network device $dev" steps["$1"]="; correct its 'dev'"
}

# Set `place` to the identity of a route in table main: its destination and metric.
place_of() { place=${1%% *} && [[ $1 != *' metric '[0-9]* ]] || place+=" ${1##*' metric '}"; } # route

# Compare the wanted routes with those in their places, and with those of hostrouting in all tables; succeed if all is right.
# Set `todo` to the routes that are not the first of their place, `surplus` to deletions of hostrouting's routes that are not
# wanted, and `commands` to the batch for both. Nothing is replaced, because the kernel would replace the first route of that
# moment, of any owner.
compare() {
  # By place: the wanted route; what comes first but for earlier routes of hostrouting, `wanted` or `foreign`; deletions of
  # the wanted route and of the earlier ones; and why no route can be added.
  local -A want=() first=() alike=() earlier=() refusal=()
  # By destination: `yes`, or what hides all its routes.
  local -A near=()
  local line place reason text verb batch=''
  todo=() surplus=() commands=() && carry_out && resolve "${parts[1]}"
  for line in "${wanted[@]}"; do place_of "$line" && want["$place"]=$line near["${line%% *}"]=yes; done
  split "${parts[2]}"
  for line in "${lines[@]}"; do
    # Of a full table few matter. Blackholes and their like begin with a letter.
    [[ ${near["${line%% *}"]-} || ${line%% *} == *[g-z]* && $line != default* ]] && judge_row "${line% }"
  done
  split "${parts[3]}"
  for line in "${lines[@]}"; do
    parse_place "$line"
    # @if ipv6@
    # Another program has merged a next hop with it, and would lose that, too.
    [[ $family == 6 && $line == *\\$'\t'* && $rest != ' nhid '* ]] && continue
    # @end@
    [[ $elsewhere || ! ${want["$place"]-} ]] && deletion && surplus+=("$REPLY")
  done
  for line in "${wanted[@]}"; do
    place_of "$line"
    reason=${near["${line%% *}"]#yes} reason=${reason:-${refusal["$place"]-}}
    # The earlier ones go once the wanted one decides, because that may be refused.
    # A deletion of several next hops also takes a route by the first of them.
    [[ ${first["$place"]-} == wanted && ! $reason && ${alike["$place"]} != *$'\n'*$'\n' && ${earlier["$place"]-} != *' nexthop '* ]] \
      && split "${earlier["$place"]-}" && surplus+=("${lines[@]}") && continue
    todo+=("$line") steps["$line"]=''
    [[ $line == *\?* && ! $reason ]] && why_open "$line"
    [[ $reason ]] && why["$line"]=$reason && continue
    # The kernel moves no route to the front; and only an empty place takes one of IPv6.
    text=${alike["$place"]-} verb=add
    [[ $family == 6 || ${earlier["$place"]-} == *' nexthop '* ]] && text+=${earlier["$place"]-}
    [[ $family == 4 && ${first["$place"]-}${earlier["$place"]-} ]] && verb=prepend
    split "$text" && commands+=("${lines[@]}" "route $verb $line proto $protocol")
  done
  # Until all are complete, an earlier one may still serve.
  [[ ${todo[*]} != *\?* ]] || surplus=()
  # So no packet meets an empty place.
  commands+=("${surplus[@]}")
  ((${#todo[@]} + ${#surplus[@]} == 0))
}

parse_place() { # row -> place, text: the row as the script writes a route
  parse_route "$1"
  text=$destination$rest place=$destination
  ((!metric)) || text+=" metric $metric" place+=" $metric"
}

bare() { REPLY=${1/' onlink'/} REPLY=${REPLY/' scope link'/}; }

# Note what a row of table main means for its place.
judge_row() { # row
  local pattern
  parse_place "$1"
  # @if ipv6@
  [[ $elsewhere == ' from '* ]] && near["$destination"]="'$1' hides every other route to this destination"
  # @end@
  [[ ! $elsewhere && ${want["$place"]-} ]] || return
  if [[ $mark != "$protocol" || ($family == 6 && $1 == *\\$'\t'*) ]]; then
    [[ ${first["$place"]-}${earlier["$place"]-} || $text == "${want["$place"]}" ]] || hidden["${want["$place"]}"]=$1
    first["$place"]=${first["$place"]-foreign}
    # Ours stays before a connected route that came later. Of IPv6 the kernel merges gateways that are added to one place.
    [[ ${alike["$place"]-}${refusal["$place"]-} || ($family == 4 && ($mark != kernel || ${earlier["$place"]-})) ]] \
      || refusal["$place"]="'$1' has this destination and metric, and is never overwritten; configure narrower destinations"
    return
  fi
  bare "${want["$place"]/' via ?'/'*'}" && pattern=${REPLY/' dev ?'/' dev *'}
  bare "$text"
  # shellcheck disable=SC2053 # A pattern.
  if [[ $kind == unicast && ${#hop_dev[@]} == 1 && $REPLY == $pattern ]]; then
    # A deletion takes no notice of `onlink`, so of two routes that differ in it alone both go.
    deletion && alike["$place"]+=$REPLY$'\n'
    [[ $text == "${want["$place"]}" || ${want["$place"]} == *\?* && ! ${earlier["$place"]-} ]] && first["$place"]=${first["$place"]-wanted}
  else
    deletion && earlier["$place"]+=$REPLY$'\n'
  fi
}

# Set REPLY to the deletion of the last parsed route. The protocol precedes the rest: ip accepts no option after
# `nexthop`.
deletion() {
  REPLY="route delete $kind $destination proto $protocol"
  ((metric)) && REPLY+=" metric $metric"
  # For a `local` route, ip assumes table local.
  [[ $elsewhere == *' table '* ]] || REPLY+=' table main'
  # With a nexthop object, ip refuses the next hops that it shows, and the kind shown is that of the object.
  if [[ $rest =~ ^' nhid '[0-9]+ ]]; then REPLY=${REPLY/"$kind "/}${BASH_REMATCH[0]}$elsewhere; else REPLY+=$rest; fi
}

# Bring the routes of the family into force, in a few looks: a change may need another one, and another program may be
# faster. Wait for what may be late.
settle() {
  local last line reason batch=''
  while :; do
    last=none reason=''
    for _ in 1 2 3 4 5; do
      compare && return
      ((${#absent[@]})) || absent=("${todo[@]}")
      [[ ${#commands[@]} -gt 0 && ${parts[2]}${parts[3]} != "$last" ]] || break
      last=${parts[2]}${parts[3]}
      printf -v batch '%s\n' "${commands[@]}" && is_right && todo=() surplus=() && return
    done
    for line in "${todo[@]}"; do
      [[ ${steps["$line"]-} ]] && reason=${reason:-${why["$line"]}}
      [[ ${why["$line"]-} == *@('Network is '|'No route to host'|'No such device'|'Cannot find device'|'is not up'|'invalid gateway')* ]] \
        && reason=${reason:-"$line: ${why["$line"]}"}
    done
    [[ $reason ]] && wait_a_second "$reason" || return
  done
}

# Note what is wrong with the family in the end, and what has changed.
judge() {
  local line
  for line in "${todo[@]}"; do
    why["$line"]=${why["$line"]-it is not in force, although ip reported no error}
    verdict+="refused: $line: ${why["$line"]}${steps["$line"]-}"$'\n'
  done
  for line in "${surplus[@]}"; do verdict+="cannot be removed: $line: ${why["$line"]-it is still there}"$'\n'; done
  [[ -e $told || ${#hidden[@]} -gt 0 ]] || return 0
  for line in "${absent[@]}"; do
    [[ ! ${why["$line"]-} ]] && repaired+=("$line") && [[ ${hidden["$line"]-} ]] \
      && tell 4 "foreign route '${hidden["$line"]}' is hidden by '$line'; it decides again when ours is removed"
  done
}

while :; do settle; judge; begin; done
