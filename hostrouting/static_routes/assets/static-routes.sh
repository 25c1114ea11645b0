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
# A refused route holds a unit under WARN, too.
mode=''

# The routes of each family as ip prints them, in its order. What a default route completes is
# between bars.
routes[4]='
@ROUTES@'
counts[4]=@COUNT@
# The commands that list their places: a node may have a million other routes. Without a name they
# mean table main: a file in /etc may give the name to another one.
tables[4]='@TABLE@'
# The devices that may complete routes, or networks of their addresses: those that the config names,
# or the device by which the node left when its routing was last right. If the default route is by
# another one, the program decides.
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
plain+='|mtu|advmss|hoplimit|expires|pref) [A-Za-z0-9_.:]+| linkdown)*) *$'
# Later starts in this boot do not wait.
[[ -e $told ]] && waits=''

# --- a family, which `settle` brings into force

# Succeed if a device may complete routes.
is_exit() { # device
    local name IFS=' '
    for name in ${exits[family]:-$1}; do
        is_named "$1" "$name" && return
    done
    return 1
}

# Complete the routes of the family by the first default route -> wanted
complete() { # default routes, links
    local dev hop='' words i IFS=$'\n'
    local -A hops=()
    # shellcheck disable=SC2206 # Split into rows.
    local rows=($1)
    if [[ $1 ]]; then
        # Of several of IPv6, preferences and the device of IPv4 decide.
        ((family == 4 || ${#rows[@]} == 1)) || defer default "$1"
        [[ ${rows[0]} =~ $plain ]] || defer default "${rows[0]}"
        dev=${BASH_REMATCH[3]}
        hop="via ${BASH_REMATCH[1]} dev $dev"
        hops=(['dev ?']="dev $dev" ['via ? dev ?']="$hop" ["via ? dev $dev"]="$hop")
        is_exit "$dev" || defer exit "${exits[family]}"
        # A router in the fabric may have brought it.
        is_infiniband "$dev" "$2" && defer default "$1"
    fi
    # Thirty times as fast as a pattern over the text.
    IFS='|'
    # shellcheck disable=SC2206 # Split at the bars.
    words=(${routes[family]#$'\n'})
    for ((i = 1; i < ${#words[@]}; i += 2)); do
        words[i]=${hops["${words[i]}"]-${words[i]}}
    done
    IFS=''
    wanted="${words[*]}"
    # Another default route may complete it.
    [[ $hop && $wanted == *' ?'* ]] && defer default "$1"
    return 0
}

# Add routes, and look: the routes in the networks of the wanted ones -> present, and all of
# hostrouting -> own. Fail with a complaint of ip.
look_after() { # commands that add routes
    local open=()
    [[ ${routes[family]} == *'|'* ]] && open=('route show exact default' 'link show')
    look "$family" "$1" "${tables[family]}" "route show table all proto $protocol" "${open[@]}" ||
        return
    present=${parts[1]}
    own=${parts[2]}
    complete "${parts[3]-}" "${parts[4]-}"
}

# The identity of a route in table main, its destination and metric -> place
find_place() { # route
    local route=$1 metric=0
    # Blackholes and their like begin with a word.
    [[ ${route%% *} == *[.:]* ]] || route=${route#* }
    [[ $route == *' metric '[0-9]* ]] && metric=${route##*' metric '}
    place="${route%% *} ${metric%% *}"
}

# The wanted routes that hostrouting does not have -> missing, or incomplete. It must have no other
# one, each must be the first of its place, and a place that lacks one must be empty.
find_missing() {
    local row last='' IFS=$'\n'
    local -A has=() taken=()
    # shellcheck disable=SC2206 # Split into rows.
    local rows=($present)
    missing=() incomplete=()
    # Their order is that of the kernel, and nothing else is in their networks.
    [[ $own == "$wanted" && ${#rows[@]} == "${counts[family]}" ]] && return
    for row in $own; do
        # A device without carrier takes routes all the same.
        row=${row/ linkdown}
        has["${row% }"]=yes
    done
    for row in "${rows[@]}"; do
        # For one source. Another IPv6 route to its destination would be hidden.
        [[ $row == *' from '* ]] && defer row "$row"
        find_place "$row"
        # Rows of a place are neighbours.
        [[ $row == *"$mark "* && $place == "$last" ]] && defer place "$row"
        [[ $row == *"$mark "* ]] || taken["$place"]=$row
        last=$place
    done
    for row in $wanted; do
        row=${row% }
        if [[ ${has["$row"]-} ]]; then
            unset -v 'has["$row"]'
            continue
        fi
        # Most boots find none, and to find a place takes time.
        if ((${#taken[@]})); then
            find_place "$row"
            [[ ${taken["$place"]-} ]] && defer place "${taken["$place"]}"
        fi
        if [[ $row == *' ?'* ]]; then
            incomplete+=("$row")
        else
            missing+=("$row")
        fi
    done
    ((${#has[@]})) && defer row "${!has[*]}"
}

# Bring the family into force, if need be by additions. Print the routes that are refused.
settle() {
    local additions reason=''
    look_after '' || defer ip "$complaint"
    find_missing
    if ((${#missing[@]})); then
        printf -v additions "route add %s$mark\n" "${missing[@]}"
        if look_after "$additions"; then
            print_repair
        else
            reason="ip has complained first: $complaint"
            look_after '' || defer ip "$complaint"
        fi
        find_missing
    fi
    # Without a complaint they would be there.
    [[ $reason == '' && ${missing[*]} ]] && defer missing "${missing[0]}"
    refuse 'no default route completes it' "${incomplete[@]}"
    refuse "$reason" "${missing[@]}"
}

# Print what was added, but for the additions of a boot.
print_repair() {
    local text="repaired: + ${missing[0]%% ?(pref medium)}"
    ((${#missing[@]} > 1)) && text+=", and $((${#missing[@]} - 1)) more"
    [[ -e $told ]] && print 4 "$text" >&2
}

refuse() { # reason, routes
    local route
    for route in "${@:2}"; do
        printf 'refused: %s: %s\n' "${route%% ?(pref medium)}" "$1"
    done
}

# --- all

# Succeed if all routes are in force. Otherwise `late` is the first refusal.
answer_alone() {
    local family known=0
    refused=''
    for family in "${!routes[@]}"; do
        if found=$(settle); then
            refused+=${found:+$found$'\n'}
            known=$((known + 1))
        else
            take_reason
        fi
    done
    late=${refused%%$'\n'*}
    late=${late#refused: }
    [[ ! $refused ]] && ((known == ${#routes[@]}))
}

# End without an answer of the program.
give_up() {
    [[ $refused ]] && finish 11 3 "${refused%$'\n'}"
    finish 12 3 "static routes $(explain)"
}

pass() {
    finish 10 5 "routes in force: $((counts[4] + ${counts[6]-0}))"
}

# One command: of a line that bash cannot evaluate it goes on with the next command.
answer routes
