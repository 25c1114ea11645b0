#!/bin/bash -p
# Proves that every address of the expected CIDRs leaves by an expected device (that of the default
# route, unless the config names some) or by an allowed one.
#
#   check-route-overlap.sh [now]        now: do not wait
#
# It answers where that is plain: where each rule, route and device has a form that it knows, and
# none of them leads elsewhere. Whatever it does not recognise, right or wrong, is judged by the
# program that travels with it. The exit status is
#
#   10    gates may start: all is right, or the mode is WARN.
#   11    an address leaves by another device, or will. Only under STRICT.
#   12    nothing is proven: it is not plain, and the program gives no answer. Only under STRICT.
#
# With any other status it was cut. Each apply writes this file again: to change it, change
# hostRouting.routeOverlap in the agent's config.

set -fu
export LC_ALL=C

mode=@MODE@
# By family: a few networks that contain all CIDRs, and an address of each CIDR, with its length: a
# high one, since pods and services get the first.
declare -A roots=([4]='@ROOTS4@' [6]='@ROOTS6@')
declare -A points=([4]='@POINTS4@' [6]='@POINTS6@')
# In the same order the first and the last address of each IPv4 CIDR, as numbers.
firsts=(@FIRSTS@)
lasts=(@LASTS@)
# The verdict, but for the devices at its end.
verdict='@VERDICT@'
# Patterns of the devices that may carry, beside those by which the CIDRs must leave: these devices,
# and the one that each network stands for. Without any, it is that of the default route.
allowed='@ALLOWED@'
given=(@DEVICES@)
networks=(@NETWORKS@)
# `auto`: a fabric that the cloud's agent announces counts.
fabric=@FABRIC@
# What only the program judges: units of `after`, a `fabric` of the config, or nothing.
beyond=@BEYOND@

# @COMMON@
# It prints numbers for tables and kinds of rows: files in /etc may name two tables alike.
ip+=(-N)
told=$folder/route-overlap.told
# One of them exists after an answer.
right=$folder/route-overlap.ok
wrong=$folder/route-overlap.detected
# Later starts in this boot do not wait.
[[ -e $right || -e $wrong ]] && waits=0

# --- the forms that are plain

# A row of table local begins with its kind.
own='@(2|3|4)'
main_table=254
local_table=255
is_local="^[0-9]+:.from all lookup $local_table( proto [0-9]+)? *$"
# The rule of the kernel. An older ip may not print what another one selects by.
is_main="^32766:.from all lookup $main_table( proto [0-9]+)? *$"
is_by_mark='^[0-9]+:.from all fwmark (0x[0-9a-f]+)(/(0x[0-9a-f]+))? [a-z0-9]'
is_by_source='^[0-9]+:.from ([0-9a-f.:]+) lookup [0-9]+( proto [0-9]+)? *$'
is_lookup='^[0-9]+:.(not )?from (all|[0-9a-f.:/]+)( [a-z].*)?'
is_lookup+=" lookup ($main_table|$local_table)( .*)?$"
is_switch='OS\.(EnableRDMA|UpdateRdmaDriver|CheckRdmaDriver)'

# Split a row, as `ip -o route` prints it, into its destination, table and metric, and the devices
# of its next hops (devs).
parse() { # row
    local words i
    # Next hops follow a backslash and a tab.
    # shellcheck disable=SC2206 # Split at blanks.
    words=(${1//\\$'\t'/ })
    table=$main_table
    metric=0
    devs=()
    # shellcheck disable=SC2053 # A pattern.
    [[ ${words[0]-} == $own ]] && words=("${words[@]:1}")
    destination=${words[0]-}
    for ((i = 1; i < ${#words[@]}; i++)); do
        case ${words[i]} in
            onlink | linkdown | nexthop) continue ;;
            via | proto | scope | weight | pref | expires) ;;
            mtu | advmss | hoplimit | initcwnd | initrwnd) ;;
            # The kernel refuses to send from there.
            src) [[ ${words[i + 1]-} != 127.* ]] || doubt row "$1" || return ;;
            metric) metric=${words[i + 1]-} ;;
            table) table=${words[i + 1]-} ;;
            dev) devs+=("${words[i + 1]-}") ;;
            *) doubt row "$1" || return ;;
        esac
        i=$((i + 1))
    done
    # An expired row is listed for a while, and a row for an own address may be in another table.
    [[ $destination == default || $destination != *[!0-9a-f.:/]* ]] || doubt row "$1" || return
    # shellcheck disable=SC2053 # A pattern.
    [[ $1 != $own' '* || $table == "$local_table" ]] || doubt row "$1" || return
    [[ $1 != *' expires -'* ]] || doubt row "$1" || return
    # Scope host: of a device without an address the kernel sends from 127.0.0.1, which is invalid.
    # shellcheck disable=SC2053 # A pattern.
    [[ $1 != *' scope 254 '* || $1 == $own' '* ]] || doubt row "$1" || return
    [[ ${devs[*]-} && ${devs[*]} != *[!A-Za-z0-9_.\ -]* ]] || doubt row "$1"
}

# Succeed if the row that was parsed leads by devices that may carry.
judge() {
    local dev
    for dev in "${devs[@]}"; do
        # shellcheck disable=SC2053 # A pattern.
        [[ ${fine[$dev]-} || $dev == @($allowed) ]] || doubt device "$dev" || return
        carriers[$dev]=yes
    done
}

# --- the rules

# Succeed if no address of the node is a source, nor one that a route names.
is_foreign() { # source, addresses and routes
    [[ $2 != *@(inet|inet6|src)" $1"[\ /]* ]]
}

# Succeed if tables local and main decide alone. Each CIDR has a route in main, so no rule decides
# that comes after it. A packet of the node has no mark, and none has the source of a pod.
read_rules() { # rules, addresses and routes
    local line is_first=yes
    split "$1"
    for line in "${lines[@]}"; do
        if [[ $line =~ $is_by_mark ]] && ((BASH_REMATCH[1] & ${BASH_REMATCH[3]:-0xffffffff})); then
            continue
        elif [[ $line =~ $is_by_source ]] && is_foreign "${BASH_REMATCH[1]}" "$2"; then
            continue
        elif [[ $line =~ $is_local ]]; then
            is_first=''
        elif [[ $is_first ]]; then
            break
        elif [[ $line =~ $is_main ]]; then
            return 0
        elif [[ ! $line =~ $is_lookup ]]; then
            break
        fi
    done
    doubt rule "${line-}"
}

# --- the devices

# -> exit_dev: the device of the default routes, unless IPv4 has named it. Of IPv4 those of the
# lowest metric decide, in turns: all must name one device. Of IPv6 there may be one.
find_exit() { # default routes of table main
    local line dev lowest='' named=''
    split "$1"
    [[ $family == 4 || ! ${lines[1]-} ]] || doubt default "$1" || return
    for line in "${lines[@]}"; do
        parse "$line" || return
        lowest=${lowest:-$metric}
        [[ $metric == "$lowest" ]] || break
        # Those of hostrouting are completed by others.
        [[ $line != *" proto $protocol "* ]] || doubt default "$line" || return
        for dev in "${devs[@]}"; do
            [[ ${named:-$dev} == "$dev" ]] || doubt default "$line" || return
            named=$dev
        done
    done
    exit_dev=${exit_dev:-$named}
}

# Succeed if a device is up, with a carrier.
has_carrier() { # device, links
    local flags form=$'\n'"[0-9]+: ${1//./\\.}(@[^ ]+)?: <([A-Z_,0-9-]+)>"
    [[ $1 != *[!A-Za-z0-9_.-]* && $'\n'$2 =~ $form ]] || doubt device "$1" || return
    flags=,${BASH_REMATCH[2]},
    # An alias may have a line like it.
    [[ ! $'\n'$2 =~ $form.*$form ]] || doubt device "$1" || return
    [[ $flags == *,UP,* && $flags == *,LOWER_UP,* ]] || doubt carrier "$1"
}

# Succeed if a network stands for the exit: for hardware that is no InfiniBand, and alone has an
# address in it.
is_of_exit() { # addresses in the network
    local line type=''
    split "$1"
    for line in "${lines[@]}"; do
        [[ $line == +([0-9])": $exit_dev "* ]] || doubt network "$line" || return
    done
    [[ ${lines[*]-} && -e /sys/class/net/$exit_dev/device ]] || doubt network "$exit_dev" || return
    read -r type < "/sys/class/net/$exit_dev/type"
    # Ethernet
    [[ $type == 1 ]] || doubt network "$exit_dev"
}

# -> expected: the devices by which the CIDRs must leave. IPv6 has those of IPv4, if there are any.
# InfiniBand is none unless it is given: a router in the fabric may have brought its route.
find_expected() { # default routes of table main, links, addresses in each network
    local addresses
    expected=("${given[@]}")
    find_exit "$1" || return
    if ((${#given[@]} && ! ${#networks[@]})); then
        return 0
    fi
    [[ ! $exit_dev ]] || ! is_infiniband "$exit_dev" "$2" || doubt default "$1" || return
    for addresses in "${@:3}"; do
        is_of_exit "$addresses" || return
    done
    expected=(${exit_dev:+"$exit_dev"} "${given[@]}")
}

# --- the routes

# Succeed if a row is of a table that may decide.
may_decide() { # row
    [[ $1 != *' table '* || $1 == *" table $local_table "* ]]
}

# Judge the rows inside of the roots. Of IPv4 the first to its destination decides, of IPv6 each
# may. -> seen: their destinations
judge_inside() { # rows
    local line
    local -A known=()
    split "$1"
    for line in "${lines[@]}"; do
        # Many rows differ in their destinations alone.
        if [[ ${known["${line#* }"]-} && ${line%% *} == *[.:]* ]]; then
            seen["$main_table ${line%% *}"]=yes
            continue
        fi
        may_decide "$line" || continue
        parse "$line" || return
        [[ $family == 6 || ! ${seen["$table $destination"]-} ]] || continue
        seen["$table $destination"]=yes
        judge || return
        [[ $table != "$main_table" ]] || known["${line#* }"]=yes
    done
}

# Judge the answers for an address of each CIDR: a route that holds the whole CIDR decides where
# none inside does, or where those inside have gateways that are FAILED. -> covers: their lengths
judge_answers() {
    local i length
    for i in "${!list[@]}"; do
        parse "${answers[i]}" || return
        length=$((family == 4 ? 32 : 128))
        [[ $destination == */* ]] && length=${destination#*/}
        [[ $destination == default ]] && length=0
        ((length <= ${list[i]#*/})) || doubt inside "${answers[i]}" || return
        judge || return
        covers[i]=$length
    done
}

# Succeed if around the roots there are no IPv6 routes but the default route: they may have turns,
# or be for one source, which no question has.
is_alone() { # rows around
    local line
    split "$1"
    for line in "${lines[@]}"; do
        may_decide "$line" || continue
        parse "$line" || return
        [[ "$table $destination" == "$main_table default" ]] && continue
        # Those of a whole root are inside.
        [[ ${seen["$table $destination"]-} ]] || doubt around "$line" || return
    done
}

# --- the fabric: an announced /16 takes its own address and the broadcast addresses, and all others
# from a route that is not longer

# -> announced: the addresses that the cloud's agent may add
read_fabric() {
    local pool=/var/lib/hyperv/.kvp_pool_0
    local word content=''
    announced=()
    [[ $fabric == auto && -e /etc/waagent.conf ]] || return 0
    [[ -f /etc/waagent.conf ]] || doubt fabric || return
    # Bash complains of a NUL.
    { content=$'\n'$(< /etc/waagent.conf) || doubt fabric; } 2> /dev/null || return
    [[ $content =~ $'\n'[[:space:]]*${is_switch}[[:space:]]*=[^$'\n']*[yY] ]] || return 0
    content=' '
    if [[ -e $pool ]]; then
        [[ -f $pool ]] || doubt fabric || return
        # What pads or parts the texts in it becomes blanks.
        content=$(exec tr '\0\n:|' ' ' 2> /dev/null < "$pool") || doubt fabric || return
        # Its daemon may be writing: a record has 2560 bytes.
        ((${#content} && ${#content} % 2560 == 0)) || doubt fabric || return
    fi
    if [[ $content != *'IPoIB_Data '* ]]; then
        # They may come any moment, where there is InfiniBand.
        ! compgen -G '/sys/class/infiniband/*' > /dev/null || doubt awaited "$pool"
        return
    fi
    for word in $content; do
        [[ ! $word =~ ^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+ ]] || announced+=("${BASH_REMATCH[0]}")
    done
}

# Succeed if no CIDR has an address of a network, but for CIDRs whose deciding routes are longer.
is_apart() { # network or address
    local i mask first last network=$1 IFS=./
    # shellcheck disable=SC2086 # Split into octets and length.
    set -- $1 32
    mask=$(((0xffffffff << (32 - 10#$5)) & 0xffffffff))
    first=$(((10#$1 << 24 | 10#$2 << 16 | 10#$3 << 8 | 10#$4) & mask))
    last=$((first | (mask ^ 0xffffffff)))
    for i in "${!firsts[@]}"; do
        ((first <= lasts[i] && firsts[i] <= last)) || continue
        # Its first and last addresses become broadcast addresses.
        ((covers[i] > 10#$5 && first < firsts[i] && lasts[i] < last)) ||
            doubt fabric "$network" || return
    done
}

# Succeed if the fabric takes nothing from the CIDRs.
judge_fabric() { # rules, links, addresses
    local address line network broadcast
    local form='^[0-9]+: ([^ ]+) +inet ([0-9.]+ peer )?([0-9./]+)'
    form+='( metric [0-9]+)?( brd ([0-9.]+))? '
    # A rule may select by what comes, and table local precedes it.
    [[ $1 == $'0:\tfrom all lookup '"$local_table"* ]] || doubt fabric "$1" || return
    [[ ! $1 =~ 'from '[0-9] ]] || doubt fabric "$1" || return
    for address in "${announced[@]}"; do
        is_apart "$address" || return
        is_apart "${address%.*.*}.0.0/16" || return
    done
    # The agent sets devices up, and the kernel connects their networks.
    split "$3"
    for line in "${lines[@]}"; do
        [[ $line =~ $form ]] || doubt address "$line" || return
        network=${BASH_REMATCH[3]}
        broadcast=${BASH_REMATCH[6]:-$network}
        ! has_carrier "${BASH_REMATCH[1]}" "$2" || continue
        is_apart "$network" || return
        is_apart "$broadcast" || return
    done
}

# --- the answer

# Succeed if a family is plainly right.
is_plain_in() { # family
    local family=$1
    local n m dev destination table metric rules links addresses inside around
    local -a ask list answers others devs covers=() within=()
    local -A fine=() seen=()
    # shellcheck disable=SC2206 # Split at blanks.
    ask=(${roots[$family]})
    # shellcheck disable=SC2206 # Split at blanks.
    list=(${points[$family]})
    n=${#ask[@]}
    m=${#list[@]}
    # IPv4 names the device for IPv6, too.
    ((family == 4 || m)) || return 0
    answers=("${list[@]%/*}")
    others=("${networks[@]/#/addr show to }")
    if ((family == 6)); then
        others=("${ask[@]/#/route show table all match }")
    fi
    look "$family" 'rule show' 'link show' 'addr show' 'route show exact default' \
        "${ask[@]/#/route show table all root }" "${answers[@]/#/route get fibmatch }" \
        "${others[@]}" || return
    rules=${parts[0]}
    links=${parts[1]}
    addresses=${parts[2]}
    printf -v inside %s "${parts[@]:4:n}"
    answers=("${parts[@]:4 + n:m}")
    others=("${parts[@]:4 + n + m}")
    ((family == 6)) || within=("${others[@]}")
    find_expected "${parts[3]}" "$links" "${within[@]}" || return
    ((m)) || return 0
    [[ ${expected[*]-} ]] || doubt default "IPv$family" || return
    for dev in "${expected[@]}"; do
        has_carrier "$dev" "$links" || return
        fine[$dev]=yes
    done
    read_rules "$rules" "$addresses$inside${answers[*]}" || return
    judge_inside "$inside" || return
    if ((family == 6)); then
        printf -v around %s "${others[@]}"
        is_alone "$around" || return
    fi
    judge_answers || return
    [[ $family == 6 || ! ${announced[*]-} ]] || judge_fabric "$rules" "$links" "$addresses"
}

# By name, the devices by which the CIDRs leave.
declare -A carriers=()

# Succeed if all is plainly right.
answer_alone() {
    carriers=()
    expected=()
    exit_dev=''
    [[ ! $beyond ]] || doubt "$beyond" || return
    read_fabric && is_plain_in 4 && is_plain_in 6
}

# Write that all is right, and end.
pass() {
    local dev text=''
    # First the expected ones, then others by name.
    for dev in "${expected[@]}"; do
        [[ ${carriers[$dev]-} ]] && text+=", $dev"
        unset -v 'carriers[$dev]'
    done
    lines=("${!carriers[@]}")
    ((${#lines[@]} < 2)) || split "$(printf '%s\n' "${lines[@]}" | sort)"
    for dev in "${lines[@]}"; do
        text+=", $dev"
    done
    text="$verdict ${text#, }"
    [[ -d $folder ]] || mkdir -p "$folder"
    # With the time of the proof, as the program writes it.
    TZ=UTC0 printf '%s\nproven %(%Y-%m-%dT%H:%M:%SZ)T\n' "$text" -1 > "$right" ||
        print 4 "$right is out of date: it could not be written"
    [[ -e $wrong ]] && rm -f "$wrong"
    finish 10 5 "$text"
}

# Write that nothing is proven, and end.
give_up() {
    local text
    rm -f "$right" "$wrong"
    explain
    [[ $mode == STRICT ]] || finish 10 4 "$text"
    finish 12 3 "$text"
}

# End with an answer of the program: under WARN a wrong node starts its units.
end() { # status
    [[ $mode == STRICT ]] || exit 10
    exit "$1"
}

# One command: of a line that bash cannot evaluate it goes on with the next command.
answer check
