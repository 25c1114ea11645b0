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
# By family: a few networks that contain all CIDRs, and addresses of each CIDR, with its length.
declare -A roots=([4]='@ROOTS4@' [6]='@ROOTS6@')
declare -A points=([4]='@POINTS4@' [6]='@POINTS6@')
# Of each of these IPv4 CIDRs the first and the last address, as numbers.
firsts=(@FIRSTS@)
lasts=(@LASTS@)
# The verdict, but for the devices at its end.
verdict='@VERDICT@'
# Patterns of device names.
allowed=(@ALLOWED@)
# Devices by which the CIDRs must leave, or networks that stand for them; without any, it is the
# device of the default route.
given=(@EXPECTED@)
# `auto`: a fabric that the cloud's agent announces counts.
fabric=@FABRIC@
# What only the program judges: units of `after`, a `fabric` of the config, or nothing.
beyond=@BEYOND@

# @COMMON@
told=$folder/route-overlap.told
# One of them exists after an answer.
right=$folder/route-overlap.ok
wrong=$folder/route-overlap.detected
# Later starts in this boot do not wait.
[[ ! -e $right && ! -e $wrong ]] || waits=0

# --- the forms that are plain

is_name='^[A-Za-z0-9_.-]+$'
is_local='^[0-9]+:.from all lookup local( proto [a-z0-9]+)? *$'
is_main='^[0-9]+:.from all lookup main( proto [a-z0-9]+)? *$'
is_of_vrf='^[0-9]+:.from all lookup \[l3mdev-table\]( proto [a-z0-9]+)? *$'
is_by_mark='^[0-9]+:.from all fwmark (0x[0-9a-f]+)(/(0x[0-9a-f]+))? [a-z]'
is_lookup='^[0-9]+:.(not )?from [0-9a-f.:/l]+( [a-z].*)? lookup ([A-Za-z0-9_.-]+)( .*)?$'
is_switch='OS\.(EnableRDMA|UpdateRdmaDriver|CheckRdmaDriver)'

# Split a row, as `ip -o route` prints it, into its destination, table and metric, and the next hops:
# their devices (devs), and each with its gateway (hops).
parse() { # row
    local words i
    local gateway='' is_own=''
    # Next hops follow a backslash and a tab.
    # shellcheck disable=SC2206 # Split at blanks.
    words=(${1//\\$'\t'/ })
    table=main
    metric=0
    devs=()
    hops=()
    if [[ ${words[0]-} == @(local|broadcast|anycast) ]]; then
        is_own=yes
        words=("${words[@]:1}")
    fi
    destination=${words[0]-}
    for ((i = 1; i < ${#words[@]}; i++)); do
        case ${words[i]} in
            onlink | linkdown) ;;
            proto | scope | src | weight | pref | mtu | advmss | hoplimit | expires) i=$((i + 1)) ;;
            metric) metric=${words[++i]-} ;;
            table) table=${words[++i]-} ;;
            nexthop) gateway='' ;;
            via) gateway=${words[++i]-} ;;
            dev)
                i=$((i + 1))
                [[ ${words[i]-} =~ $is_name ]] || doubt row "$1" || return
                devs+=("${words[i]}")
                hops+=("$gateway dev ${words[i]}")
                ;;
            *)
                doubt row "$1"
                return
                ;;
        esac
    done
    # A kind of route is no destination. An own address elsewhere than in table local, and a row that
    # has expired, are rare.
    [[ $destination == default || $destination != *[!0-9a-f.:/]* ]] || doubt row "$1" || return
    [[ ${devs[*]-} && (! $is_own || $table == local) && $1 != *' expires -'* ]] || doubt row "$1"
}

# Succeed if the row that was parsed leads by devices that may carry, and by no gateway that a host
# passes over.
judge() {
    local dev hop
    for dev in "${devs[@]}"; do
        may_carry "$dev" || return
        carriers[$dev]=yes
    done
    for hop in "${hops[@]}"; do
        [[ ! ${failed[$hop]-} ]] || doubt neighbour "$hop" || return
    done
}

may_carry() { # device
    local pattern
    [[ ! ${fine[$1]-} ]] || return 0
    for pattern in "${allowed[@]}"; do
        # shellcheck disable=SC2053 # A pattern.
        [[ $1 != $pattern ]] || fine[$1]=yes
    done
    [[ ${fine[$1]-} ]] || doubt device "$1"
}

# --- the rules

# -> tables: those that may decide. Each CIDR has a route in table main, so no rule decides that comes
# after it. A packet of the node has no mark, and without a VRF its device has no table.
read_rules() { # rules, links
    local line is_first=yes
    tables=([main]=yes [local]=yes)
    split "$1"
    for line in "${lines[@]}"; do
        if [[ $line =~ $is_by_mark ]] && ((BASH_REMATCH[1] & ${BASH_REMATCH[3]:-0xffffffff})); then
            continue
        elif [[ $line =~ $is_of_vrf && $2 != *' master '* ]]; then
            continue
        elif [[ $line =~ $is_local ]]; then
            is_first=''
        elif [[ $is_first ]]; then
            break
        elif [[ $line =~ $is_main ]]; then
            return 0
        elif [[ $line =~ $is_lookup ]]; then
            tables[${BASH_REMATCH[3]}]=yes
        else
            break
        fi
    done
    doubt rule "${line-}"
}

# --- the devices

# Succeed if a device is up, with a carrier.
has_carrier() { # device, links
    local form=$'\n'"[0-9]+: $1(@[^ ]+)?: <([A-Z_,0-9-]+)>"
    [[ $1 =~ $is_name && $'\n'$2 =~ $form ]] || doubt device "$1" || return
    [[ ,${BASH_REMATCH[2]}, == *,UP,* && ,${BASH_REMATCH[2]}, == *,LOWER_UP,* ]] || doubt carrier "$1"
}

# -> exit_dev: the device of the default routes. The lowest metric decides. Where several have it, and
# where the exit is not that of IPv4, all must name one device.
find_exit() { # default routes of table main
    local line dev lowest=''
    split "$1"
    for line in "${lines[@]}"; do
        # Those of hostrouting are completed by others.
        [[ $line != *" proto $protocol "* ]] || continue
        parse "$line" || return
        lowest=${lowest:-$metric}
        [[ $family == 6 || $metric == "$lowest" ]] || continue
        for dev in "${devs[@]}"; do
            [[ ${exit_dev:-$dev} == "$dev" ]] || doubt default "$line" || return
            exit_dev=$dev
        done
    done
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

# -> expected: the devices by which the CIDRs must leave, of the config or of a default route. IPv6
# has those of IPv4, if there are any.
find_expected() { # default routes of table main, addresses in each network of the config
    local i
    ((${#given[@]} == 0 || family == 4)) || return 0
    if [[ ! $exit_dev && (${#given[@]} == 0 || ${given[*]} == */*) ]]; then
        find_exit "$1" || return
    fi
    expected=("${given[@]}")
    ((${#given[@]})) || expected=(${exit_dev:+"$exit_dev"})
    for i in "${!expected[@]}"; do
        [[ ${expected[i]} == */* ]] || continue
        shift
        is_of_exit "$1" || return
        expected[i]=$exit_dev
    done
}

# --- the routes

# -> failed: the gateways that a host passes over
read_failed() { # neighbours
    local line
    split "$1"
    for line in "${lines[@]}"; do
        [[ $line =~ ^([0-9a-f.:]+' dev '[^ ]+)' ' ]] || doubt neighbour "$line" || return
        failed[${BASH_REMATCH[1]}]=yes
    done
}

# Judge the rows inside of the roots. Of IPv4 the first to its destination decides, of IPv6 each may.
judge_inside() { # rows
    local line
    local -A seen=() known=()
    split "$1"
    for line in "${lines[@]}"; do
        # Many rows differ in their destinations alone.
        if [[ ${known["${line#* }"]-} && ${line%% *} == *[.:]* ]]; then
            seen["main ${line%% *}"]=yes
            continue
        fi
        parse "$line" || return
        [[ ${tables[$table]-} ]] || continue
        [[ $family == 6 || ! ${seen["$table $destination"]-} ]] || continue
        seen["$table $destination"]=yes
        judge || return
        [[ $table != main ]] || known["${line#* }"]=yes
    done
}

# Judge the answers for addresses of the CIDRs: a route that holds a whole CIDR decides where none
# inside does. Where a longer one has the address, each route around the CIDR must be fine.
judge_answers() { # answers
    local i length
    for i in "${!list[@]}"; do
        shift $((i > 0))
        parse "$1" || return
        length=$((family == 4 ? 32 : 128))
        [[ $destination != */* ]] || length=${destination#*/}
        [[ $destination != default ]] || length=0
        covers[i]=$length
        if ((length > ${list[i]#*/})); then
            covers[i]=0
            further+=("route show table main match ${list[i]}")
            continue
        fi
        [[ $table == main ]] || doubt answer "$1" || return
        judge || return
        decides[$destination]=$metric
    done
}

# Judge the routes that may have their turn with an answer: default routes of IPv4, and of IPv6 all
# to its destination.
judge_turns() { # rows around
    local line
    split "$1"
    for line in "${lines[@]}"; do
        # A row may begin with a word for its kind.
        [[ ${decides[${line%% *}]-} || ${line%% *} != @(default|*[.:]*) ]] || continue
        parse "$line" || return
        ((metric > ${decides[$destination]-0})) || judge || return
    done
}

# Judge each row of some tables.
judge_all() { # questions
    local line rows
    look "$family" "$@" || return
    printf -v rows %s "${parts[@]}"
    split "$rows"
    for line in "${lines[@]}"; do
        parse "$line" || return
        judge || return
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
    [[ $content =~ $'\n'[[:space:]]*$is_switch[[:space:]]*=[^$'\n']*[yY] ]] || return 0
    content=' '
    if [[ -e $pool ]]; then
        [[ -f $pool ]] || doubt fabric || return
        # What pads or parts the texts in it becomes blanks.
        content=$(exec tr '\0\n:|' ' ' 2> /dev/null < "$pool") || doubt fabric || return
        # Its daemon may be writing: a record has 2560 bytes.
        ((${#content} && ${#content} % 2560 == 0)) || doubt fabric || return
    fi
    if [[ " $content" != *' IPoIB_Data '* ]]; then
        # They may come any moment, where there is InfiniBand.
        ! compgen -G '/sys/class/infiniband/*' > /dev/null || doubt awaited
        return
    fi
    for word in $content; do
        [[ ! $word =~ ^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+ ]] || announced+=("${BASH_REMATCH[0]}")
    done
}

# Network or address -> first, last
bounds() {
    local mask IFS=./
    # shellcheck disable=SC2086 # Split into octets and length.
    set -- $1 32
    mask=$((0xffffffff << 32 - $5 & 0xffffffff))
    first=$((($1 << 24 | $2 << 16 | $3 << 8 | $4) & mask))
    last=$((first | (mask ^ 0xffffffff)))
}

# Succeed if no CIDR has one of these addresses, but for CIDRs whose deciding routes are longer.
is_apart() { # first and last address, length
    local i
    for i in "${!firsts[@]}"; do
        (($2 < firsts[i] || lasts[i] < $1 || covers[i] > $3)) || doubt fabric "${list[i]}" || return
    done
}

# Succeed if the fabric takes nothing from the CIDRs.
judge_fabric() { # rules
    local own first last line links
    # A rule may select by what comes, and table local precedes it.
    [[ $1 == $'0:\tfrom all lookup local'* && ! $1 =~ 'from '[0-9] ]] || doubt fabric "$1" || return
    ((${#tables[@]} == 2)) || doubt fabric "$1" || return
    for own in "${announced[@]}"; do
        bounds "$own/16"
        is_apart "$first" "$last" 16 || return
        is_apart "$first" "$first" 32 || return
        is_apart "$last" "$last" 32 || return
        bounds "$own"
        is_apart "$first" "$last" 32 || return
    done
    # The agent sets devices up, and the kernel connects their networks.
    look 4 'link show' 'addr show' || return
    links=${parts[0]}
    split "${parts[1]}"
    for line in "${lines[@]}"; do
        [[ $line =~ ^[0-9]+:' '([^ ]+)' '+inet' '([0-9.]+' peer ')?([0-9./]+)' '(brd' '([0-9.]+))? ]] \
            || doubt address "$line" || return
        set -- "${BASH_REMATCH[@]:3:3}"
        ! has_carrier "${BASH_REMATCH[1]}" "$links" || continue
        bounds "$1"
        is_apart "$first" "$last" 32 || return
        [[ $3 ]] || continue
        bounds "$3"
        is_apart "$first" "$last" 32 || return
    done
}

# --- the answer

# Succeed if a family is plainly right.
is_plain_in() { # family
    local family=$1
    local n dev cidr destination table metric defaults inside links rules around
    local -a ask list questions answers others devs hops covers=() further=()
    local -A fine=() failed=() tables=() decides=()
    # shellcheck disable=SC2206 # Split at blanks.
    ask=(${roots[$family]})
    # shellcheck disable=SC2206 # Split at blanks.
    list=(${points[$family]})
    # IPv4 names the device for IPv6, too.
    ((family == 4 || ${#list[@]})) || return 0
    questions=('rule show' 'route show table main exact default' 'link show up')
    for cidr in "${list[@]}"; do
        questions+=("route get fibmatch ${cidr%/*} uid 0")
    done
    questions+=("${ask[@]/#/route show table all root }")
    if ((family == 6)); then
        questions+=("${ask[@]/#/route show table main match }" 'neigh show nud failed')
    fi
    for dev in "${given[@]}"; do
        [[ $family$dev != 4*/* ]] || questions+=("addr show to $dev")
    done
    look "$family" "${questions[@]}" || return
    rules=${parts[0]}
    defaults=${parts[1]}
    links=${parts[2]}
    answers=("${parts[@]:3:${#list[@]}}")
    n=$((3 + ${#list[@]}))
    printf -v inside %s "${parts[@]:n:${#ask[@]}}"
    others=("${parts[@]:n + ${#ask[@]}}")
    around=$defaults
    if ((family == 6)); then
        printf -v around %s "${others[@]::${#ask[@]}}"
        read_failed "${others[-1]}" || return
    fi
    find_expected "$defaults" "${others[@]}" || return
    ((${#list[@]})) || return 0
    [[ ${expected[*]-} ]] || doubt default || return
    for dev in "${expected[@]}"; do
        has_carrier "$dev" "$links" || return
        fine[$dev]=yes
    done
    read_rules "$rules" "$links" || return
    judge_inside "$inside" || return
    judge_answers "${answers[@]}" || return
    judge_turns "$around" || return
    for table in "${!tables[@]}"; do
        [[ $table == @(main|local) ]] || further+=("${ask[@]/#/route show table $table match }")
    done
    ((${#further[@]} == 0)) || judge_all "${further[@]}" || return
    [[ $family == 6 || ! ${announced[*]-} ]] || judge_fabric "$rules"
}

# Succeed if all is plainly right.
is_plain() {
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
        [[ ! ${carriers[$dev]-} ]] || text+=", $dev"
        unset -v 'carriers[$dev]'
    done
    lines=("${!carriers[@]}")
    ((${#lines[@]} < 2)) || split "$(printf '%s\n' "${lines[@]}" | sort)"
    for dev in "${lines[@]}"; do
        text+=", $dev"
    done
    text="$verdict ${text#, }"
    [[ -d $folder ]] || mkdir -p "$folder"
    printf '%s\n' "$text" > "$right" || print 4 "$right is out of date: it could not be written"
    [[ ! -e $wrong ]] || rm -f "$wrong"
    finish 10 5 "$text"
}

# Write that nothing is proven, and end.
give_up() {
    local text="cannot be proven here: $why"
    rm -f "$right" "$wrong"
    detail=${detail//$'\t'/ }
    detail=${detail%%$'\n'*}
    [[ ! $detail || $detail == *[![:print:]]* ]] || text+=" (${detail%% })"
    text+="; $program, which is for that, ended with $status: run: @hostrouting apply@"
    [[ $mode == STRICT ]] || finish 10 4 "$text"
    finish 12 3 "$text"
}

# Take the answer of the program, and end; return after a second if that may help.
ask_program() {
    run_program check "$patience"
    case $status in
        10 | 11)
            [[ ! $said ]] || printf '%s\n' "$said"
            [[ $mode == STRICT ]] || exit 10
            exit "$status"
            ;;
    esac
    if [[ $status$patience == 14wait ]]; then
        # One more answer is due after the wait.
        wait_a_second "$said" || patience=''
        return
    fi
    # Routing may become plain.
    wait_a_second "not plain ($why), and no answer of $program" || give_up
}

declare -A carriers=()
patience=wait
((waits)) || patience=''
until is_plain; do
    ask_program
done
pass
