#!/bin/bash -p
# Installs the static routes of this node at every boot and before each start of a gated unit.
# Each apply of hostrouting writes this file again from its config; `hostrouting reset` removes it.
#
#   static-routes.sh [now]        now: do not wait
#
# Exits 0 if every route below is in force and no other route is ours. Otherwise it exits 1, keeps the
# changes that succeeded, and logs the reason for each route. It waits for a default route, a device or an address that
# may be late. A foreign route in the place of ours stays after it, and decides again once ours is removed.
# ip's output has no patterns for file names.
set -fu
export LC_ALL=C

# As ip prints them, in its order; a ? is looked up in the default routes.
routes_of=([4]='
@ROUTES@')
# @if ipv6@
routes_of[6]='
@ROUTES6@'
# @end@

# @SHARED@

told=$folder/static-routes.told
# Later starts in this boot do not wait.
[[ -e $told ]] && waits=0
declare -A absent=() # The routes that were not in force in this run.
declare -A hidden=() # The foreign route that decided before, by ours.
declare -A why=()    # The refusal of a route, or of a deletion.
families=("${!routes_of[@]}") # Those that are still to be looked at.
# Of the families that were: the number of routes, the routes, what is wrong, and a route that is not ours alone.
total=0 settled='' verdict='' merged=''

# Report and exit. The journal does not get a verdict twice, so a line says which routes are in force again.
finish() { # exit status, priority, verdict
  local line repaired=()
  for line in "${!hidden[@]}"; do
    [[ ${hidden["$line"]} ]] && tell 4 "foreign route '${hidden["$line"]}' is hidden by '$line'; it decides again when ours is removed"
  done
  if ((${#absent[@]})) && last_told "$told" && [[ $last == "$3" ]]; then
    split "$settled"
    for line in "${lines[@]}"; do [[ ${absent["$line"]-} ]] && repaired+=("$line"); done
    ((${#repaired[@]})) && tell 4 "repaired: + ${repaired[0]}${repaired[1]+, and $((${#repaired[@]} - 1)) more}"
  fi
  tell_verdict "$told" "$2" "$3"
  exit "$1"
}

cannot() { finish 1 3 "cannot see or change routes: $answer"; }

# Replace an unknown part in `wanted`, before another word or at the end of a line.
complete() { # unknown part, value
  wanted=${wanted//"$1"$'\n'/"$2"$'\n'}
  wanted=${wanted//"$1 "/"$2 "}
}

# Take our standing routes for those of `wanted` that no default route completes: the first of a place, if it has the named
# parts. Fail if one is not there.
keep() { # unknown part
  local -A first=() stands=()
  local line name text
  look "route show table main proto $protocol" || cannot
  for line in "${lines[@]}"; do
    parse_route "$line"
    [[ ! $elsewhere && ! ${first["$destination $metric"]-} ]] || continue
    first["$destination $metric"]=yes name=''
    [[ $kind == unicast && $rest != *' nexthop '* ]] || continue
    ((metric)) && name=" metric $metric"
    text=$destination$rest$name
    stands["$destination via ${hop_gateway[0]:-?} dev ?$name"]=$text
    stands["$destination via ? dev ${hop_dev[0]}$name"]=$text
    stands["$destination via ? dev ?$name"]=$text
  done
  split "$wanted"
  wanted=$'\n'
  for line in "${lines[@]}"; do
    [[ "$line " == *"$1 "* ]] && line=${stands["$line"]-$line}
    wanted+=$line$'\n'
  done
  [[ $wanted != *"$1"[$' \n']* ]]
}

# shellcheck disable=SC2034 # find_exit_of_ipv6 uses the default routes by their names.
# Set `wanted` to the routes, with the unknown parts taken from the default routes, lowest metric first; set `missing` to
# the reason if they do not have one.
resolve() {
  local -A by_dev=()
  local line i dev first_dev=''
  # @if ipv6@
  local expected=() defaults ipv4_defaults
  # @end@
  wanted=$routes missing=''
  [[ $routes == *\?* ]] || return 0
  look 'route show table main exact default' || cannot
  # @if ipv6@
  [[ $family == 6 ]] && sort_routes "${lines[@]}"
  # @end@
  for line in "${lines[@]}"; do
    own_default "$line" || continue
    for i in "${!hop_dev[@]}"; do
      dev=${hop_dev[i]}
      [[ $first_dev || ${hop_state[i]} == dead ]] || first_dev=$dev
      # The slash is for a device with the name @ or *.
      [[ -n ${by_dev["/$dev"]+set} ]] && continue
      by_dev["/$dev"]=" dev $dev scope link"
      # @if ipv6@
      [[ $family == 6 ]] && by_dev["/$dev"]=" dev $dev"
      # @end@
      [[ ${hop_gateway[i]} ]] && by_dev["/$dev"]=" via ${hop_gateway[i]} dev $dev${hop_onlink[i]}"
    done
  done
  # @if ipv6@
  if [[ $family == 6 && $first_dev ]]; then
    # A router in the fabric may advertise a better default route: by it, the check would find ours.
    defaults=("${lines[@]}")
    family=4 look 'route show table main exact default' || cannot
    ipv4_defaults=("${lines[@]}")
    find_exit_of_ipv6 && [[ ${by_dev["/${expected[0]}"]+set} ]] && first_dev=${expected[0]}
  fi
  # @end@
  if [[ $wanted == *' dev ?'* ]]; then
    [[ $first_dev ]] || keep ' dev ?' || { missing="table main has no IPv$family default route" && return; }
    complete ' dev ?' " dev $first_dev"
  fi
  while [[ $wanted == *' via ? dev '* ]]; do
    dev=${wanted#*' via ? dev '} dev=${dev%%[ $'\n']*}
    if [[ -z ${by_dev["/$dev"]+set} ]] && ! keep " via ? dev $dev"; then
      missing="no IPv$family default route leaves by $dev, so it has no gateway there"
      # No DHCP lease creates a device, but a driver may be late.
      family=4 ask "link show dev $dev" -force || cannot
      [[ $answer == *'does not exist'* ]] && missing="there is no network device $dev; correct its 'dev'"
      return
    fi
    complete " via ? dev $dev" "${by_dev["/$dev"]-}"
  done
}

# Run ip commands, and note each refusal in `why`, for the route or the deletion. Then set `standing` to the routes with our
# protocol number, and return 0 if all is right: these are the wanted routes and no others, and each decides its own first
# address, so it is the first of its place. Where a longer prefix or a rule decides there, the places have to be read.
carry_out() { # commands
  local commands='' line said='' parts
  (($#)) && printf -v commands '%s\n' "$@"
  commands+=$'end\n'"route show table all proto $protocol"$'\nend'
  split "$wanted"
  lines=("${lines[@]%% *}")
  ((count)) && printf -v line '\nroute get fibmatch %s' "${lines[@]%/*}" && commands+=$line
  ask "$commands" -force || cannot
  local IFS=$'\36'
  # shellcheck disable=SC2206 # Split at the answers to `end`; thirty times as fast as %% and #.
  parts=(${answer//"$end"/$'\36'})
  [[ ${parts[2]-} ]] || { answer="ip ended early; its last line: ${answer##*$'\n'}" && cannot; }
  split "${parts[0]}"
  why=() standing=$'\n'${parts[1]#*$'\n'} answer=${parts[2]#*$'\n'}
  for line in "${lines[@]}"; do
    if [[ $line == 'Command failed -:'* ]]; then
      line=${line##*:}
      line=${!line#route add } line=${line#route prepend }
      why["${line%" proto $protocol"}"]=$said said=''
    else
      said+=${said:+; }$line
    fi
  done
  if [[ $standing == *$'\n'[A-Z]* ]]; then # A message: the table changed while it was read.
    look "route show table all proto $protocol" || cannot
    standing=$'\n'$answer answer=''
  fi
  # @if ipv6@
  standing=${standing//' pref medium'/} answer=${answer//' pref medium'/}
  # @end@
  standing=${standing// $'\n'/$'\n'} answer=${answer// $'\n'/$'\n'}
  # Answers name the protocol, a list of one protocol does not.
  line=${answer//" proto $protocol"/}
  [[ $standing == "$wanted" && $line == "${wanted:1}" ]] && ((${#answer} - ${#line} == count * (7 + ${#protocol})))
}

# Look at one family after the other; fail at the first that is not right.
all_right() {
  while ((${#families[@]})); do
    family=${families[0]} families=("${families[@]:1}") routes=${routes_of[$family]} todo=() surplus=()
    count=${routes//[!$'\n']/} count=$((${#count} - 1)) total=$((total + count))
    resolve
    [[ ! $missing ]] && carry_out || return
    settled+=$wanted
  done
}

all_right && finish 0 5 "routes in force: $total"

# --- bash reads on if something has to change

# todo: routes that are not the first of their place; surplus: deletions of our routes that are not wanted.
# By destination and metric, the place of a route:
declare -A want=()  # The rest of the wanted route.
declare -A first=() # Whose the first route is, but for those of `stale`: `ours` if it is the wanted one, or `foreign`.
declare -A own=()   # The kernel's own route, unless one of ours precedes it.
declare -A alike=() # Deletions of ours that may take the wanted route: of itself, and with `onlink` or without.
declare -A stale=() # Deletions of other routes of ours.

# Set REPLY to the deletion of the last parsed route. The protocol precedes the rest: ip accepts no option after
# `nexthop`.
deletion() {
  REPLY="route delete $kind $destination proto $protocol"
  ((metric)) && REPLY+=" metric $metric"
  # For a `local` route, ip assumes table local.
  [[ $elsewhere == *' table '* ]] || REPLY+=' table main'
  # With a nexthop object, ip refuses the next hops that it shows.
  if [[ $rest =~ ^' nhid '[0-9]+ ]]; then REPLY+=${BASH_REMATCH[0]}$elsewhere; else REPLY+=$rest; fi
}

# Compare `wanted` with `standing` and with the routes in the wanted places; fill the variables above.
survey() {
  local -A hides=() near=()
  # @if ipv6@
  local -A held=()
  # @end@
  local line key questions='' i asked keys=()
  todo=() surplus=() want=() first=() own=() alike=() stale=()
  split "$wanted"
  asked=("${lines[@]}")
  for line in "${asked[@]}"; do
    parse_route "$line"
    keys+=("$destination $metric") want["$destination $metric"]=$kind$rest near["$destination"]=yes
    # One destination may have several metrics; a route listed twice would look like two.
    [[ $questions == *" $destination" ]] || questions+=$'\n'"route show table main exact $destination"
  done
  split "$standing"
  for line in "${lines[@]}"; do
    parse_route "$line"
    # @if ipv6@
    [[ $family == 6 && $line == *\\$'\t'* && $rest != ' nhid '* ]] \
      && merged="; not removed, because another program has merged a next hop with it: $destination metric $metric" && continue
    # @end@
    deletion
    [[ ! $elsewhere && ${want["$destination $metric"]-} ]] || surplus+=("$REPLY")
  done
  ((count)) || return 0
  # Each of these commands reads the whole table.
  ((count > 16)) && questions=$'\nroute show table main'
  look "${questions:1}" || cannot
  for line in "${lines[@]}"; do
    # Of a full table few matter. Blackholes and their like begin with a letter.
    [[ ${near["${line%% *}"]-} || $line == [a-z]* ]] || continue
    parse_route "$line"
    key="$destination $metric"
    # @if ipv6@
    # The kernel merges gateways that are added beside another one; a route for a source hides those for all.
    [[ $elsewhere == ' from '* ]] && held["$destination"]="'${line% }' hides every other route to this destination"
    [[ $family == 6 && ($mark != "$protocol" || $line == *\\$'\t'*) ]] && [[ ! ${alike["$key"]-} ]] \
      && held["$key"]=${held["$key"]-"'${line% }' has this destination and metric, and no IPv6 route can precede it"}
    # @end@
    [[ ${want["$key"]-} && ! $elsewhere ]] || continue
    deletion
    if [[ $mark != "$protocol" ]]; then
      if [[ ! ${alike["$key"]-}${stale["$key"]-} ]]; then
        [[ $mark == kernel ]] && own["$key"]=${line% }
        [[ ${first["$key"]-} || $kind$rest == "${want["$key"]}" ]] || hides["$key"]=${line% }
      fi
      first["$key"]=${first["$key"]-foreign}
    elif [[ $kind${rest/ onlink/} != "${want["$key"]/ onlink/}" ]]; then
      stale["$key"]+=$REPLY$'\n'
    else
      [[ $kind$rest == "${want["$key"]}" && ! ${alike["$key"]-} ]] && first["$key"]=${first["$key"]-ours}
      alike["$key"]+=$REPLY$'\n'
    fi
  done
  for i in "${!asked[@]}"; do
    line=${asked[i]} key=${keys[i]}
    # @if ipv6@
    held["$key"]=${held["${key% *}"]-${held["$key"]-}}
    [[ ${held["$key"]} ]] && todo+=("$line") absent["$line"]=yes why["$line"]=${held["$key"]} own["$key"]=held && continue
    # @end@
    if [[ ${first["$key"]-} == ours && ${alike["$key"]} != *$'\n'*$'\n' ]]; then
      split "${stale["$key"]-}"
      surplus+=("${lines[@]}")
      # It was there, in other words.
      [[ ${why["$line"]-} ]] && absent["$line"]=''
    else
      todo+=("$line") absent["$line"]=yes
      [[ ${hides["$key"]-} ]] && hidden["$line"]=${hides["$key"]}
      [[ ${own["$key"]-} ]] && why["$line"]="the kernel's own route '${own["$key"]}' has this destination and metric, \
and is never overwritten; configure narrower destinations"
    fi
  done
}

# Add the routes of `todo`, before the foreign ones of their places; then remove those of `surplus`, so that no packet meets
# an empty place; and put ours first where it stands further back: the kernel moves no route, so it is removed and added.
# At last, remove our earlier routes from the places that accepted one. Nothing is replaced, because the kernel would
# replace the first route of that moment, of any owner.
change() {
  local -A earlier=()
  local line key adds=() moves=() surpassed=()
  for line in "${todo[@]}"; do
    parse_route "$line"
    key="$destination $metric"
    [[ ${own["$key"]-} ]] && continue
    earlier["$line"]=${stale["$key"]-}
    if [[ ${alike["$key"]-} ]]; then
      split "${alike["$key"]}"
      moves+=("${lines[@]}" "route prepend $line proto $protocol")
    # @if ipv6@
    elif [[ $family == 6 ]]; then
      split "${stale["$key"]-}"
      moves+=("${lines[@]}" "route add $line proto $protocol")
    # @end@
    elif [[ ${first["$key"]-}${stale["$key"]-} ]]; then
      adds+=("route prepend $line proto $protocol")
    else
      adds+=("route add $line proto $protocol")
    fi
  done
  carry_out "${adds[@]}" "${surplus[@]}" "${moves[@]}" && return
  for line in "${!earlier[@]}"; do
    split "${earlier["$line"]}"
    [[ ${why["$line"]-} ]] || surpassed+=("${lines[@]}")
  done
  ((${#surpassed[@]})) && carry_out "${surpassed[@]}"
}

# Make `wanted` the routes in force: most places are empty, and the others are read, in a few rounds: a route may need
# another one, an earlier one of ours goes after it, or its place may change meanwhile.
converge() {
  local -A stands=()
  local last='' round line adds=()
  split "$standing"
  for line in "${lines[@]}"; do stands["$line"]=yes stands["${line%% *}"]=yes; done
  split "$wanted"
  for line in "${lines[@]}"; do
    # Another route may hide one of IPv6 or merge with it, so the places are read first.
    [[ $family == 6 || ${stands["$line"]-} ]] && continue
    absent["$line"]=yes
    # The kernel would refuse it beside an earlier one of ours.
    [[ ${stands["${line%% *}"]-} ]] || adds+=("route add $line proto $protocol")
  done
  ((${#adds[@]})) && carry_out "${adds[@]}" && return 0
  for round in 1 2 3 4 5; do
    survey
    ((${#todo[@]} + ${#surplus[@]})) || return 0
    [[ $round == 5 || $standing$answer == "$last" ]] && return 1
    last=$standing$answer
    change && return 0
  done
}

# Set REPLY to the reason to wait; empty if waiting cannot help.
reason_to_wait() {
  local line
  REPLY=$missing
  [[ $missing ]] && return
  for line in "${todo[@]}"; do
    [[ ${why["$line"]-} == *@('Network is '|'No route to host'|'No such device'|'Cannot find device'|'is not up'|'invalid gateway')* ]] \
      && REPLY="$line: ${why["$line"]}" && return
  done
}

# Note what is wrong with this family in the end.
judge() {
  local line what=route
  # @if ipv6@
  [[ $family == 6 ]] && what='IPv6 route'
  # @end@
  if [[ $missing ]]; then
    todo=() surplus=() line="no $what was changed: $missing"
    [[ $missing == *'default route'* ]] && line+="; see ${givers[family]}, or its network configuration"
    verdict+=$line$'\n'
  fi
  for line in "${todo[@]}"; do
    absent["$line"]=''
    [[ ${why["$line"]-} ]] && hidden["$line"]=''
    verdict+="refused: $line: ${why["$line"]-it is not in force, although ip reported no error}"$'\n'
  done
  for line in "${surplus[@]}"; do
    verdict+="cannot be removed: $line: ${why["$line"]-it is still there}"$'\n'
  done
  settled+=$wanted
}

while true; do
  while true; do
    [[ ! $missing ]] && converge && todo=() surplus=() && break
    reason_to_wait
    { [[ $REPLY ]] && wait_a_second "$REPLY"; } || break
    resolve
    [[ $missing ]] || carry_out
  done
  judge
  all_right && break
done
[[ $verdict ]] && finish 1 3 "${verdict%$'\n'}"
finish 0 5 "routes in force: $total$merged"
