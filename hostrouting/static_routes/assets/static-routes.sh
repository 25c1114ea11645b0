#!/bin/bash -p
# Restores the static routes; static-routes.service runs it.
# Installed by hostrouting; `hostrouting reset` removes it.
#
# The program does that, and exits with 10 if units may start. If no Python can run it, the routes
# below are added once per boot, unless another route has their key. Then the routing is not checked,
# and the exit status is 12.

set -u
export LC_ALL=C
limits=()
# The outbound devices: names, or networks that contain their addresses.
devs='@DEVS@'
# Family, destination, gateway, device, metric; "-" is filled in.
routes='
@ROUTES@'

# @PROGRAM@

# Set `hop` to the next hop of a device's default route, and `out` to the device; fail if it has no
# default route. InfiniBand devices (link type 32) never lead to the cluster.
find_hop() { # family, device
    local row type=''
    # The kernel allows other names, but ip would misread them.
    [[ $2 =~ ^[A-Za-z0-9_.+@-]+$ ]] || return
    { read -r type < "/sys/class/net/$2/type"; } 2> /dev/null
    [[ $type == 32 ]] && return 1
    while read -r row; do
        # Use the first one that is not for a type of service or a source.
        [[ $row == *' tos '* || $row == *' from '* ]] || break
    done < <(ip "-$1" -o route show default dev "$2" 2> /dev/null)
    [[ $row == default\ * && $row != *nexthop* ]] || return
    out=$2
    hop="dev $2"
    [[ $row != *' onlink'* ]] || hop+=' onlink'
    [[ $row =~ \ via\ (inet6\ )?([^ ]+) ]] || return 0
    hop="via ${BASH_REMATCH[1]}${BASH_REMATCH[2]} $hop"
}

# Do the same for the first outbound device that has a default route.
find_outbound() { # family
    local name dev
    for name in $devs; do
        if [[ $name != */* ]]; then
            find_hop "$1" "$name" && return
            continue
        fi
        while read -r _ dev _; do
            find_hop "$1" "$dev" && return
        done < <(ip -o address show to "$name")
    done
    return 1
}

# Set `hop` to a route's next hop; fail if it is unknown.
complete() { # family, gateway, device
    local via=''
    [[ $1 == 4 && $2 == *:* ]] && via='inet6 '
    if [[ $2 != - && $3 != - ]]; then
        hop="via $via$2 dev $3"
    elif [[ $3 != - ]]; then
        find_hop "$1" "$3"
    elif find_outbound "$1"; then
        [[ $2 == - ]] || hop="via $via$2 dev $out"
    else
        return 1
    fi
}

# Set `commands` to those that add the routes, and `left` to the routes whose next hop is unknown.
plan() {
    local family to via dev metric hop out key
    local -A hops=()
    commands='' left=''
    while read -r family to via dev metric; do
        [[ $family ]] || continue
        # Most routes have the same next hop.
        key="$family $via $dev"
        if [[ ! -v hops[$key] ]]; then
            complete "$family" "$via" "$dev" || hop=''
            hops[$key]=$hop
        fi
        if [[ ${hops[$key]} ]]; then
            commands+="route add $to ${hops[$key]} metric $metric proto 142"$'\n'
        else
            left+=" $to"
        fi
    done < <(printf %s "$routes")
}

# Add the routes, once per boot; wait up to 30 s for the default routes that they need.
restore() {
    local try commands left
    # Another user who can open the file can hold its lock.
    umask 077
    { exec 9<> /run/hostrouting.lock; } 2> /dev/null || return
    flock --nonblock 9 || return
    # `set -C` follows no link and does not overwrite a file.
    (set -C && : > /run/hostrouting/restored) 2> /dev/null || return
    for ((try = 0; try < 30; try++)); do
        plan
        [[ $left ]] || break
        sleep 1
    done
    # ip refuses to add a route if there is one with its key.
    printf %s "$commands" | ip -force -batch - 2> /dev/null
    echo "<4>routes were added without Python, and routing was not checked"
    [[ ! $left ]] || echo "<3>not added, because no outbound device has a default route:$left"
}

run_program 40 routes
status=$?
[[ $status == 1[012] ]] && exit "$status"
if [[ $status == 13 ]]; then
    restore
else
    echo "<3>routes could not be checked: the program failed with status $status; run: @hostrouting apply@"
fi
exit 12
