#!/bin/bash -p
# Installs the static routes of this node at every boot and before each start of a gated unit.
# Each apply of hostrouting writes this file again from its config; `hostrouting reset` removes it.
#
#   static-routes.sh [now]        now: do not wait
#
# It adds the routes whose places are empty, and changes no other one. The rest is left to the
# program that travels with it. The exit status is
#
#   10    every route below is in force, and no other route has the protocol of hostrouting
#   11    a route is refused, or nothing completes it. What succeeded stays
#   12    unknown: it could not look
#
# With another one, it was cut or killed. At a boot it waits for what may be late: a default route,
# a device, an address.

# The output of ip has no patterns for file names.
set -fu
export LC_ALL=C

# The routes of each family as ip prints them, in its order. What a default route completes is
# between bars.
routes[4]='
@ROUTES@'
counts[4]=@COUNT@
# The commands that list their places: a node may have a million other routes. Without a name they
# mean table main: a file in /etc may give the name to another one.
tables[4]='@TABLE@'
# The devices that the config names, or a network of their addresses; or that by which the node left
# when its routing was last right. If the default route is by another one, the program decides.
exits[4]='@EXIT@'
# @if ipv6@
routes[6]='
@ROUTES6@'
counts[6]=@COUNT6@
tables[6]='@TABLE6@'
# One default route completes those of IPv6, so it is no choice.
exits[6]=''
# @end@

# @COMMON@

told=$folder/static-routes.told
mark=" proto $protocol"
# A default route that is plain: a gateway, a device, and other words.
plain='^default via ((inet6 )?[0-9a-f.:]+) dev ([A-Za-z0-9_.-]+)(( (proto|scope|src|metric'
plain+='|mtu|advmss|hoplimit|expires|pref) [A-Za-z0-9_.:]+| onlink| linkdown)*) *$'
# By the words that a route lacks, those that the first default route has for it.
declare -A hops=()
# Later starts in this boot do not wait.
[[ -e $told ]] && waits=0

# --- the routes that are wanted

# The words that the first default route has -> hops
read_default() { # default routes, links
    local dev hop named
    hops=()
    split "$1"
    ((${#lines[@]})) || return 0
    # Of several of IPv6, preferences and the device of IPv4 decide.
    [[ $family == 4 || ${#lines[@]} == 1 ]] || doubt default "$1" || return
    [[ ${lines[0]} =~ $plain ]] || doubt default "${lines[0]}" || return
    dev=${BASH_REMATCH[3]}
    hop="via ${BASH_REMATCH[1]} dev $dev"
    [[ ${BASH_REMATCH[4]} == *' onlink'* ]] && hop+=' onlink'
    hops=(['dev ?']="dev $dev" ['via ? dev ?']="$hop" ["via ? dev $dev"]="$hop")
    named=${exits[family]:-$dev}
    [[ " $named " == *" $dev "* ]] || doubt exit "$named" || return
    # A router in the fabric may have brought it.
    if is_infiniband "$dev" "$2"; then
        doubt default "$1"
    fi
}

# The routes of the family, completed as far as possible -> wanted. Thirty times as fast as a
# pattern over the text.
complete() {
    local IFS='|' words i
    # shellcheck disable=SC2206 # Split at the bars.
    words=(${routes[family]#$'\n'})
    for ((i = 1; i < ${#words[@]}; i += 2)); do
        words[i]=${hops["${words[i]}"]-${words[i]}}
    done
    IFS=''
    wanted="${words[*]}"
}

# --- what there is

# Add routes, and look: the routes in the networks of the wanted ones -> present, and all of
# hostrouting -> own
look_after() { # commands that add routes
    local open=()
    [[ ${routes[family]} == *'|'* ]] && open=('route show exact default' 'link show')
    look "$family" "$1" "${tables[family]}" "route show table all proto $protocol" "${open[@]}" ||
        return
    present=${parts[1]}
    own=${parts[2]}
    if ((${#open[@]})); then
        read_default "${parts[@]:3}" || return
    fi
    complete
    # Another default route may complete it.
    [[ $wanted != *' ?'* || ! ${hops[*]} ]] || doubt default "${parts[3]}"
}

# The identity of a route in table main, its destination and metric -> place
find_place() { # route
    local route=$1 metric=0
    # Blackholes and their like begin with a word.
    [[ ${route%% *} == *[.:]* ]] || route=${route#* }
    [[ $route == *' metric '[0-9]* ]] && metric=${route##*' metric '}
    place="${route%% *} ${metric%% *}"
}

# The wanted routes that hostrouting does not have -> missing, or incomplete. Succeed if it has no
# other one, and each is the first of its place.
find_missing() {
    local line last
    local -A is=() empty=()
    missing=()
    incomplete=()
    split "$present"
    # Their order is that of the kernel, and nothing else is in their networks.
    [[ $own == "$wanted" && ${#lines[@]} == "${counts[family]}" ]] && return
    split "$wanted"
    for line in "${lines[@]}"; do
        is["${line% }"]=missing
    done
    split "$own"
    for line in "${lines[@]}"; do
        # A device without carrier takes routes all the same.
        line=${line/ linkdown}
        [[ ${is["${line% }"]-} ]] || doubt row "$line" || return
        is["${line% }"]=there
    done
    split "$wanted"
    for line in "${lines[@]}"; do
        [[ ${is["${line% }"]} == missing ]] || continue
        find_place "$line"
        empty["$place"]=yes
        case $line in
            *' ?'*) incomplete+=("$line") ;;
            *) missing+=("$line") ;;
        esac
    done
    place=''
    split "$present"
    for line in "${lines[@]}"; do
        last=$place
        find_place "$line"
        # For one source. Another IPv6 route to its destination would be hidden.
        [[ $line != *' from '* ]] || doubt row "$line" || return
        [[ ${empty["$place"]-yet} == yet ]] || doubt place "$line" || return
        # Rows of a place are neighbours.
        [[ $line != *"$mark "* || $place != "$last" ]] || doubt place "$line" || return
    done
}

# --- a family

# Succeed if its routes are in force, if need be after additions.
settle() {
    local additions complaint=''
    look_after '' || return
    find_missing || return
    if ((${#missing[@]})); then
        printf -v additions "route add %s$mark\n" "${missing[@]}"
        if look_after "$additions"; then
            print_repair "${missing[@]%% ?(pref medium)}"
        else
            complaint=$detail
            look_after '' || return
        fi
        find_missing || return
    fi
    refuse 'no default route completes it' "${incomplete[@]}"
    [[ $complaint ]] && refuse "ip has complained first: $complaint" "${missing[@]}"
    ((${#missing[@]} + ${#incomplete[@]} == 0)) || doubt missing "${missing[0]-}"
}

# Print what was added, but for the additions of a boot.
print_repair() { # routes
    local more=''
    (($# == 1)) || more=", and $(($# - 1)) more"
    [[ -e $told ]] && print 4 "repaired: + $1$more"
}

refuse() { # reason, routes
    local route
    for route in "${@:2}"; do
        refused+="refused: ${route%% ?(pref medium)}: $1"$'\n'
    done
}

# --- all

# Succeed if all routes are in force. Otherwise `why` is the last doubt, and `late` the first
# refusal.
answer_alone() {
    local family are_in_force=yes
    refused=''
    for family in "${!routes[@]}"; do
        settle || are_in_force=''
    done
    late=${refused%%$'\n'*}
    late=${late#refused: }
    [[ $are_in_force ]]
}

# End without an answer of the program.
give_up() {
    local text
    [[ $refused ]] && finish 11 3 "${refused%$'\n'}"
    explain
    finish 12 3 "static routes $text"
}

end() { # status
    exit "$1"
}

pass() {
    finish 10 5 "routes in force: $((counts[4] + ${counts[6]-0}))"
}

# One command: of a line that bash cannot evaluate it goes on with the next command.
answer routes
