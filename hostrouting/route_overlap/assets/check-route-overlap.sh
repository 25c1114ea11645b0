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
# The devices by which the CIDRs must leave, or networks of their addresses. Without any, it is the
# device of the default route.
given=(@DEVICES@)
# Patterns of further devices that may carry a CIDR.
allowed='@ALLOWED@'
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
[[ -e $right || -e $wrong ]] && waits=''

# --- the forms that are plain; table 254 is main, and 255 is local

# Routes. What follows is a type of service, a header, a metric of TCP, a source that the kernel
# refuses, an expired lifetime or the like.
address='[0-9a-f.:]+'
name='[A-Za-z0-9_.-]+'
words=" via $address| dev $name| src $address| (proto|metric|weight) [0-9]+| pref [a-z]+"
words+='| (mtu|advmss|hoplimit|initcwnd|initrwnd) [0-9]+| expires [0-9]+sec| onlink| linkdown'
words+="| scope (0|200|253)| *\\\\"$'\tnexthop'
is_route="^(default|$address(/[0-9]+)?)($words)* dev $name($words)* *$"
# An address of the node, a broadcast or an anycast address.
is_own="^[234] $address(/[0-9]+)? dev $name table 255($words| scope 25[34])* *$"
is_default="^default( via $address)? dev ($name) "
# Rules. An older ip may not print what a rule selects by, but for that of the kernel.
is_by_mark='^[0-9]+:.from all fwmark (0x[0-9a-f]+)(/(0x[0-9a-f]+))? [a-z0-9]'
is_by_source="^[0-9]+:.from ($address) lookup [0-9]+( proto [0-9]+)? *$"
is_local='^[0-9]+:.from all lookup 255( proto [0-9]+)? *$'
is_main='^32766:.from all lookup 254( proto [0-9]+)? *$'
is_lookup="^[0-9]+:.(not )?from (all|[0-9a-f.:/]+)( [a-z].*)? lookup 25[45]( .*)?$"
is_up='(@[^ ]+)?: <([A-Z0-9_-]+,)*UP,LOWER_UP[,>]'

# --- the devices

# Those by which the CIDRs must leave, and by name those by which they do.
expected=()
declare -A carriers=()
# The forms that were judged.
declare -A known=()
# The addresses that the cloud's agent may add, and the length of the route around each IPv4 CIDR.
announced=() covers=()

# Find the expected devices: without given ones, that of the default route.
find_expected() { # IPv4 default routes of table main, links
    local row name exit='' metric lowest='' IFS=$'\n'
    # Those of the lowest metric decide in turns: all must name one device.
    for row in $1; do
        metric=none
        [[ $row =~ ' metric '[0-9]+ ]] && metric=${BASH_REMATCH[0]}
        [[ ${lowest:=$metric} == "$metric" ]] || break
        # Those of hostrouting are completed by others.
        [[ $row =~ $is_default && $row != *" proto $protocol "* ]] || defer default "$row"
        [[ ${exit:=${BASH_REMATCH[2]}} == "${BASH_REMATCH[2]}" ]] || defer default "$row"
    done
    # A router in the fabric may have brought it.
    is_infiniband "$exit" "$2" && defer default "$1"
    [[ $exit || ${given[*]-} ]] || defer default IPv4
    for name in "${given[@]:-$exit}"; do
        is_named "$exit" "$name" && name=$exit
        need_carrier "$name" "$2"
        expected+=("$name")
    done
}

# A device must be up, with a carrier.
need_carrier() { # device, links
    # An alias may have a line like it.
    [[ $'\n'$2 =~ $'\n'[0-9]+": $1"[@:].*$'\n'[0-9]+": $1"[@:] ]] && defer carrier "$1"
    [[ $'\n'$2 =~ $'\n'[0-9]+": $1"$is_up ]] || defer carrier "$1"
}

# --- the rules

# Tables local and main must decide alone. Each CIDR has a route in main, so no rule decides that
# comes after it. A packet of the node has no mark, and its source is that of an address or route.
judge_rules() { # rules, addresses and routes
    local rule has_local='' IFS=$'\n'
    for rule in $1; do
        if [[ $rule =~ $is_by_mark ]] && ((BASH_REMATCH[1] & ${BASH_REMATCH[3]:-0xffffffff})); then
            continue
        elif [[ $rule =~ $is_by_source && $2 != *@(inet?(6)|src)" ${BASH_REMATCH[1]}"[\ /]* ]]; then
            continue
        elif [[ $rule =~ $is_local ]]; then
            has_local=yes
        elif [[ $has_local && $rule =~ $is_main ]]; then
            return
        elif [[ $has_local == '' || ! $rule =~ $is_lookup ]]; then
            break
        fi
    done
    defer rule "${rule-}"
}

# --- the routes

# A row must have a plain form, and lead by devices that may carry.
judge() { # row
    local dev form=$1 rest=$1 IFS=' '
    # Many rows differ in their destinations alone.
    [[ ${1%% *} == *[.:]* ]] && form=${1#* }
    [[ ${known["$form"]-} ]] && return
    [[ $1 =~ $is_route || $1 =~ $is_own ]] || defer row "$1"
    [[ $1 == *' src 127.'* ]] && defer row "$1"
    while [[ $rest == *' dev '* ]]; do
        rest=${rest#*' dev '}
        dev=${rest%% *}
        # shellcheck disable=SC2053 # A pattern.
        [[ " ${expected[*]} " == *" $dev "* || $dev == @($allowed) ]] || defer device "$dev"
        carriers[$dev]=yes
    done
    known["$form"]=yes
}

# Judge each row that may decide in a CIDR, or in a part of it.
judge_rows() { # rows
    local row IFS=$'\n'
    for row in $1; do
        # The rules lead to no other table.
        [[ $row == *' table '* && $row != *' table 255 '* ]] || judge "$row"
    done
}

# Judge the answer for an address of a CIDR, a route that holds all of it, and note its length.
judge_answer() { # length of the CIDR, that of an address, answer
    local length=${3#[234] }
    length=${length%% *}
    judge "$3"
    [[ $length == default ]] && length=/0
    [[ $length == */* ]] || length+=/$2
    covers+=("${length#*/}")
    ((${length#*/} <= $1)) || defer inside "$3"
}

# --- the fabric

# Find the announced addresses, even if the agent is configured to leave them alone.
read_fabric() {
    local word content='' pool=/var/lib/hyperv/.kvp_pool_0
    [[ $fabric == auto && -e /etc/waagent.conf ]] || return 0
    if [[ -e $pool ]]; then
        [[ -f $pool ]] || defer fabric
        # What pads or parts the texts in it becomes blanks.
        content=$(exec tr '\0\n:|' ' ' 2> /dev/null < "$pool")
        # Its daemon may be writing: a record has 2560 bytes.
        ((${#content} && ${#content} % 2560 == 0)) || defer fabric
    fi
    for word in $content; do
        [[ $word =~ ^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+ ]] && announced+=("${BASH_REMATCH[0]}")
    done
    if [[ ! ${announced[*]-} ]] && compgen -G '/sys/class/infiniband/*' > /dev/null; then
        # They may come any moment.
        defer awaited "$pool"
    fi
}

# An announced address takes itself, and of its /16 what no longer route takes, with the broadcast
# addresses.
judge_announced() { # address
    local i first last number address=$1 IFS=.
    # shellcheck disable=SC2086 # Split into octets.
    set -- $address
    number=$((10#$1 << 24 | 10#$2 << 16 | 10#$3 << 8 | 10#$4))
    first=$((number & 0xffff0000))
    last=$((number | 0xffff))
    for i in "${!firsts[@]}"; do
        ((last < firsts[i] || lasts[i] < first)) && continue
        ((covers[i] > 16 && first < firsts[i] && lasts[i] < last)) || defer fabric "$address"
        ((number < firsts[i] || lasts[i] < number)) || defer fabric "$address"
    done
}

# The fabric must take nothing from the CIDRs.
judge_fabric() { # rules, links, addresses
    local address line IFS=$'\n'
    [[ ${announced[*]-} ]] || return 0
    # A rule may select by what comes, and table local precedes it.
    [[ $1 == $'0:\tfrom all lookup 255'* && ! $1 =~ 'from '[0-9] ]] || defer fabric "$1"
    for address in "${announced[@]}"; do
        judge_announced "$address"
    done
    # The agent sets devices up, and the kernel connects their networks.
    for line in $3; do
        line=${line#*: }
        need_carrier "${line%% *}" "$2"
    done
}

# --- the answer

# A family must be plainly right.
prove() { # family
    local i inside rules links addresses
    # shellcheck disable=SC2206 # Split at blanks.
    local asked=(${roots[$1]}) cidrs=(${points[$1]})
    local questions=("${asked[@]/#/route show table all root }") answers=("${cidrs[@]%/*}")
    # Those around may have turns, or be for one source, which no question has.
    [[ $1 == 6 ]] && questions+=("${asked[@]/#/route show table all match }")
    look "$1" 'rule show' 'link show' 'addr show' 'route show exact default' "${questions[@]}" \
        "${answers[@]/#/route get fibmatch }" || defer ip "$complaint"
    rules=${parts[0]} links=${parts[1]} addresses=${parts[2]}
    printf -v inside %s "${parts[@]:4:${#questions[@]}}"
    answers=("${parts[@]:4 + ${#questions[@]}}")
    # IPv6 has the same.
    [[ $1 == 6 ]] || find_expected "${parts[3]}" "$links"
    judge_rules "$rules" "$addresses$inside${answers[*]}"
    judge_rows "$inside"
    for i in "${!cidrs[@]}"; do
        judge_answer "${cidrs[i]#*/}" $(($1 == 4 ? 32 : 128)) "${answers[i]%$'\n'}"
    done
    [[ $1 == 6 ]] || judge_fabric "$rules" "$links" "$addresses"
}

# All must be plainly right. Print the devices by which the CIDRs leave: first the expected ones,
# then others by name.
prove_all() {
    local dev names devs=''
    [[ $beyond ]] && defer "$beyond"
    read_fabric
    prove 4
    [[ ${points[6]} ]] && prove 6
    names=("${!carriers[@]}")
    ((${#names[@]} > 1)) && mapfile -t names < <(printf '%s\n' "${names[@]}" | sort)
    for dev in "${expected[@]}" "${names[@]}"; do
        [[ ${carriers[$dev]-} ]] && devs+=", $dev"
        unset -v 'carriers[$dev]'
    done
    printf %s "${devs#, }"
}

# Succeed if all is plainly right.
answer_alone() {
    found=$(prove_all) || take_reason
}

# Write that all is right, and end.
pass() {
    local text="$verdict $found"
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
    text=$(explain)
    [[ $mode == WARN ]] && finish 10 4 "$text"
    finish 12 3 "$text"
}

# One command: of a line that bash cannot evaluate it goes on with the next command.
answer check
