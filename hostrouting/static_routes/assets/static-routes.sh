#!/bin/bash -p
# Installs the static routes of this node at every boot and before each start of a gated unit.
# Each apply of hostrouting writes this file again from its config; `hostrouting reset` removes it.
#
#   static-routes.sh [now]        now: do not wait
#
# What is plain it does itself: it adds a route to a place that is empty, or before a foreign route.
# The rest it leaves to the program that travels with it. No foreign route is changed. The exit
# status is
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
# The device by which the node left when its routing was last right: it precedes that of a default
# route that came later.
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
# A row that is plain: its destination, a gateway, a device, and other words.
plain='^(default|[0-9a-f.:/]+)( via ((inet6 )?[0-9a-f.:]+))? dev ([A-Za-z0-9_.-]+)(( (proto|table'
plain+='|scope|src|metric|mtu|advmss|hoplimit|expires|pref) [A-Za-z0-9_.:]+| onlink| linkdown)*) *$'
# By the words that a route lacks, those that a default route has for them.
declare -A hops=()
# Later starts in this boot do not wait.
[[ ! -e $told ]] || waits=0

# --- the routes that are wanted

# Set `hops`, by the words that a route lacks, to those that the default routes have for it.
read_defaults() { # rows, links, neighbours that are FAILED
    local line dev hop first=''
    hops=()
    split "$1"
    for line in "${lines[@]}"; do
        [[ $line =~ $plain && ${BASH_REMATCH[3]} ]] || doubt default "$line" || return
        # Of several of IPv6, preferences and the device of IPv4 decide.
        [[ $family == 4 || ! $first ]] || doubt default "$line" || return
        dev=${BASH_REMATCH[5]}
        hop="via ${BASH_REMATCH[3]} dev $dev"
        [[ ${BASH_REMATCH[6]} != *' onlink'* ]] || hop+=' onlink'
        hops["via ? dev $dev"]=${hops["via ? dev $dev"]-$hop}
        first=${first:-$dev}
    done
    if exit_works "$2" "$3"; then
        first=${exits[family]}
    elif [[ $first ]] && is_infiniband "$first" "$2"; then
        # A router in the fabric may have brought it.
        doubt default "$1" || return
    fi
    [[ $first ]] || return 0
    hops['dev ?']="dev $first"
    hops['via ? dev ?']=${hops["via ? dev $first"]}
}

# Succeed if the pinned exit is up, with a carrier, and its gateway is not FAILED.
exit_works() { # links, neighbours that are FAILED
    local dev=${exits[family]} hop
    hop=${hops["via ? dev $dev"]-}
    [[ $hop ]] || return
    has_carrier "$dev" "$1" || return
    hop=${hop#via }
    [[ $'\n'$2 != *$'\n'"${hop%% dev *} dev $dev "* ]]
}

# Set `wanted` to the routes of the family, completed as far as possible: thirty times as fast as a
# pattern over the text.
complete() {
    local IFS='|' words i
    wanted=${routes[family]#$'\n'}
    [[ $wanted == *'|'* ]] || return 0
    # shellcheck disable=SC2206 # Split at the bars.
    words=($wanted)
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
    local open='' pin=${exits[family]}
    [[ ${routes[family]} != *'|'* ]] || open=yes
    look "$family" "$1" "${tables[family]}" "route show table all proto $protocol" \
        "${open:+route show exact default}" \
        "${open:+link show}" "${pin:+neigh show nud failed}" || return
    present=${parts[1]}
    own=${parts[2]}
    # By the same default routes they are as before.
    [[ ! $wanted || ${parts[*]:3} != "$completed_by" ]] || return 0
    read_defaults "${parts[@]:3}" || return
    complete
    completed_by=${parts[*]:3}
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
    local metric=0
    [[ $1 != *' metric '[0-9]* ]] || metric=${1##*' metric '}
    place="${1%% *} ${metric%% *}"
}

# Set `changes` to the commands that add all routes.
add_all() { # routes
    split "$1"
    printf -v changes "route add %s$mark\n" "${lines[@]}"
}

# Set `changes` to the commands that make the wanted routes the first of their places, and `notes`
# to the foreign routes that they hide.
plan() {
    local line place row
    local -A wants=() near=() first=() has=()
    changes=''
    notes=''
    if [[ ! $present$own && $wanted != *' ?'* ]]; then
        add_all "$wanted"
        return
    fi
    # A device without carrier takes routes all the same.
    present=${present//' linkdown'}
    own=${own//' linkdown'}
    split "$wanted"
    for line in "${lines[@]}"; do
        place_of "$line"
        wants["$place"]=${line% }
        near["${line%% *}"]=yes
    done
    split "$own"
    for line in "${lines[@]}"; do
        # A removal may take a foreign route of IPv6.
        place_of "$line"
        [[ ${wants["$place"]-} == "${line% }" ]] || doubt row "$line" || return
        has["$place"]=yes
    done
    read_places || return
    split "$wanted"
    for line in "${lines[@]}"; do
        place_of "$line"
        row=${first["$place"]-}
        if [[ $line == *' ?'* || $row == *"$mark "* ]]; then
            # Nothing completes it, or it is the first.
            continue
        elif [[ ! $row ]]; then
            changes+="route add $line$mark"$'\n'
        elif [[ $family == 4 && ! ${has["$place"]-} ]]; then
            changes+="route prepend $line$mark"$'\n'
            notes+="foreign route '${row% }' is hidden by '${line% }'; it decides again when ours "
            notes+=$'is removed\n'
        else
            doubt place "$row" || return
        fi
    done
}

# Set `first` to the first route of each place that may be that of a wanted one.
read_places() {
    local line word place row
    split "$present"
    for line in "${lines[@]}"; do
        # Blackholes and their like begin with a word.
        word=$line
        [[ ${word%% *} == *[.:]* ]] || word=${word#* }
        # Of a full table few rows matter.
        [[ ${near["${word%% *}"]-} ]] || continue
        [[ $line =~ $plain ]] || doubt row "$line" || return
        place_of "$line"
        row=${first["$place"]-}
        # What the kernel has added must not be hidden, also where a foreign route hides it.
        [[ $line != *' proto kernel '* || $row == *"$mark "* ]] || doubt place "$line" || return
        first["$place"]=${first["$place"]-$line}
    done
}

# --- a family

# Succeed if those of its routes that are complete are in force, if need be after changes.
settle() {
    local wanted='' completed_by='' changes='' notes=''
    # At a boot the places are empty, and of IPv4 an addition to another one is refused.
    if [[ $family == 4 && ! -e $told && ${routes[4]} == *' via '* && ${routes[4]} != *'|'* ]]; then
        add_all "${routes[4]}"
        ! { observe "$changes" && is_right; } || return 0
        changes=''
    fi
    for _ in 'as they are' changed; do
        if ! observe "$changes"; then
            note_refusals
            note_incomplete
            return 1
        fi
        print_changes
        ! is_right || return 0
        plan || return
        [[ $changes ]] || break
    done
    note_incomplete
    [[ ! $changes ]] || doubt changed || return
    [[ ! $refused ]] || doubt incomplete
}

# Print the changes, but for those of a boot, and what they hide.
print_changes() {
    local change=${changes%%$'\n'*}
    [[ ! $notes ]] || print 4 "${notes%$'\n'}"
    [[ -e $told && $changes ]] || return 0
    split "$changes"
    change=${change#route @(add|prepend) }
    print 4 "repaired: + ${change%%*( )"$mark"}${lines[1]+, and $((${#lines[@]} - 1)) more}"
}

# Set `refused` to the lines of the commands that ip has refused, with its words.
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
        [[ $line != *' ?'* ]] || refuse "$line" 'no default route completes it'
    done
}

refuse() { # route or command, reason
    local route=${1#route @(add|prepend) }
    route=${route%"$mark"}
    refused+="refused: ${route%% ?(pref medium)}: $2"$'\n'
}

# --- all

# Succeed if all routes are in force. Otherwise set `why` to the first doubt, and `late` to the
# first refusal.
answer_alone() {
    local family word='' output=''
    refused=''
    for family in "${!routes[@]}"; do
        if ! settle && [[ ! $word ]]; then
            word=${why:-unknown}
            output=$detail
        fi
    done
    why=$word
    detail=$output
    late=${refused%%$'\n'*}
    late=${late#refused: }
    [[ ! $why ]]
}

# End without an answer of the program.
give_up() {
    local text
    [[ ! $refused ]] || finish 11 3 "${refused%$'\n'}"
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
