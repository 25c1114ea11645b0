#!/bin/bash -p
# Installs the static routes of this node at every boot and before each start of a gated unit.
# Each apply of hostrouting writes this file again from its config; `hostrouting reset` removes it.
#
#   static-routes.sh [now]        now: do not wait
#
# It adds the routes whose places are empty, all in one batch, and leaves the rest to the program
# that travels with it. No other route is changed. The exit status is
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
# The device by which the node left when its routing was last right. If the default route is by
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
plain+='|mtu|advmss|hoplimit|expires|pref) [A-Za-z0-9_.:]+| onlink| linkdown)*) *$'
# By the words that a route lacks, those that a default route has for them.
declare -A hops=()
# Later starts in this boot do not wait.
[[ -e $told ]] && waits=0

# --- the routes that are wanted

# Set `hops`, by the words that a route lacks, to those that the default routes have for it. The
# first of a device counts, and the first of all.
read_defaults() { # rows, links
    local line dev hop first='' pin=${exits[family]}
    hops=()
    split "$1"
    # Of several of IPv6, preferences and the device of IPv4 decide.
    [[ $family == 4 || ! ${lines[1]-} ]] || doubt default "$1" || return
    for line in "${lines[@]}"; do
        [[ $line =~ $plain ]] || doubt default "$line" || return
        dev=${BASH_REMATCH[3]}
        first=${first:-$dev}
        hop="via ${BASH_REMATCH[1]} dev $dev"
        [[ ${BASH_REMATCH[4]} == *' onlink'* ]] && hop+=' onlink'
        hops["via ? dev $dev"]=${hops["via ? dev $dev"]-$hop}
    done
    [[ $first ]] || return 0
    [[ $first == "${pin:-$first}" ]] || doubt exit "$pin" || return
    # A router in the fabric may have brought it.
    ! is_infiniband "$first" "$2" || doubt default "$1" || return
    hops['dev ?']="dev $first"
    hops['via ? dev ?']=${hops["via ? dev $first"]}
}

# Set `wanted` to the routes of the family, completed as far as possible: thirty times as fast as a
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

# Change routes, and look: set `wanted`, `present` to the routes in the places of the wanted ones,
# and `own` to all of hostrouting.
observe() { # changes
    local open=()
    [[ ${routes[family]} != *'|'* ]] || open=('route show exact default' 'link show')
    look "$family" "$1" "${tables[family]}" "route show table all proto $protocol" "${open[@]}" ||
        return
    present=${parts[1]}
    own=${parts[2]}
    # By the same default routes they are as before.
    [[ $wanted && ${parts[*]:3} == "$completed_by" ]] && return
    ((${#open[@]} == 0)) || read_defaults "${parts[@]:3}" || return
    completed_by=${parts[*]:3}
    complete
}

# Succeed if table main has all wanted routes, nothing else is in their places, and no table has
# another route of hostrouting.
is_right() {
    # Their order is that of the kernel. And ip lists the routes of a protocol without it, so that
    # another route in their places would make the other list longer.
    [[ $own == "$wanted" ]] || return
    split "$present"
    ((${#lines[@]} == counts[family]))
}

# Set `place` to the identity of a route in table main: its destination and metric.
place_of() { # route
    local route=$1 metric=0
    # Blackholes and their like begin with a word.
    [[ ${route%% *} == *[.:]* ]] || route=${route#* }
    [[ $route == *' metric '[0-9]* ]] && metric=${route##*' metric '}
    place="${route%% *} ${metric%% *}"
}

# Set `changes` to the commands that add all routes.
add_all() { # routes
    split "$1"
    printf -v changes "route add %s$mark\n" "${lines[@]}"
}

# Set `changes` to the commands that add the routes whose places are empty. Fail unless each other
# one is the first of its place, and wanted.
plan() {
    local line place
    local -A wants=() first=()
    if [[ ! $present$own && $wanted != *' ?'* ]]; then
        add_all "$wanted"
        return
    fi
    changes=''
    split "$wanted"
    for line in "${lines[@]}"; do
        place_of "$line"
        wants["${line% }"]=yes
        first["$place"]=none
    done
    # A device without carrier takes routes all the same.
    split "${own//' linkdown'}"
    for line in "${lines[@]}"; do
        [[ ${wants["${line% }"]-} ]] || doubt row "$line" || return
    done
    split "$present"
    for line in "${lines[@]}"; do
        # For one source. Another IPv6 route to its destination would be hidden.
        [[ $line != *' from '* ]] || doubt row "$line" || return
        place_of "$line"
        # Of a full table few rows matter.
        [[ ${first["$place"]-} == none ]] && first["$place"]=$line
    done
    split "$wanted"
    for line in "${lines[@]}"; do
        place_of "$line"
        if [[ ${first["$place"]} != none ]]; then
            [[ ${first["$place"]} == *"$mark "* ]] || doubt place "${first["$place"]}" || return
        elif [[ $line != *' ?'* ]]; then
            changes+="route add $line$mark"$'\n'
        fi
    done
}

# --- a family

# Succeed if its routes are in force, if need be after changes.
settle() {
    local wanted='' completed_by='' changes=''
    # At a boot the places are empty, and of IPv4 an addition to another one is refused.
    if [[ $family == 4 && ! -e $told && ${routes[4]} == *' via '* && ${routes[4]} != *'|'* ]]; then
        add_all "${routes[4]}"
        if observe "$changes" && is_right; then
            return 0
        fi
        changes=''
    fi
    observe '' || return
    is_right && return
    plan || return
    if [[ $changes ]]; then
        add_planned || return
        is_right && return
        plan || return
        [[ ! $changes ]] || doubt changed || return
    fi
    note_incomplete
    [[ ! $refused ]] || doubt incomplete
}

# Succeed if ip adds what is planned.
add_planned() {
    if observe "$changes"; then
        print_changes
    else
        note_refusals
        note_incomplete
        return 1
    fi
}

# Print the changes, but for those of a boot.
print_changes() {
    local change=${changes%%$'\n'*}
    [[ -e $told ]] || return 0
    split "$changes"
    change=${change#route add }
    print 4 "repaired: + ${change%%*( )"$mark"}${lines[1]+, and $((${#lines[@]} - 1)) more}"
}

# Set `refused` to the routes that ip has refused, with its words.
note_refusals() {
    local line message='' commands
    split "$changes"
    commands=("${lines[@]}")
    split "${parts[0]-}"
    for line in "${lines[@]}"; do
        if [[ $line != 'Command failed -:'* ]]; then
            message=${line#'RTNETLINK answers: '}
        elif [[ ${commands[10#${line##*:} - 1]-} ]]; then
            refuse "${commands[10#${line##*:} - 1]}" "$message"
        fi
    done
}

# Add the routes that nothing completes to `refused`.
note_incomplete() {
    local line
    split "$wanted"
    for line in "${lines[@]}"; do
        [[ $line == *' ?'* ]] && refuse "$line" 'no default route completes it'
    done
}

refuse() { # route or command, reason
    local route=${1#route add }
    route=${route%"$mark"}
    refused+="refused: ${route%% ?(pref medium)}: $2"$'\n'
}

# --- all

# Succeed if all routes are in force. Otherwise `why` is the last doubt, and `late` the first
# refusal.
answer_alone() {
    local family unsettled=''
    refused=''
    for family in "${!routes[@]}"; do
        settle || unsettled=yes
    done
    late=${refused%%$'\n'*}
    late=${late#refused: }
    [[ ! $unsettled ]]
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
