#!/bin/bash
# A stand-in of WALinuxAgent, written from its behaviour: it gives the devices of the fabric their addresses.
# It begins when /run/waagent.begin is written.
# It reads the pool by itself, so that no fault of the product's readers can hide here.
set -u
pool=/var/lib/hyperv/.kvp_pool_0

mkfifo /run/waagent.begin
read -r _ < /run/waagent.begin

finish() { # message
    echo "$1"
    exec sleep infinity
}

text_at() { # offset in the pool, size of the field
    tail -c "+$(($1 + 1))" "$pool" | head -c "$2" | tr '\0' '\n' | head -n 1
}

value_of() { # key
    local -i offset
    for ((offset = 0; offset < $(stat -c %s "$pool"); offset += 2560)); do
        [[ $(text_at "$offset" 512) == "$1" ]] || continue
        text_at "$((offset + 512))" 2048
        return
    done
}

set_addresses() { # pairs -> number: how many of them are set
    local pair dev mac status
    number=0
    for pair in "$@"; do
        while read -r dev _ mac _; do
            mac=${mac//:/} dev=${dev%@*}
            [[ ${mac^^} == "${pair%%:*}" ]] || continue
            ip link set "$dev" up
            ip address add "${pair#*:}/16" dev "$dev" 2> /dev/null
            status=$?
            # 2: the device has it already.
            ((status == 0 || status == 2)) && number+=1
        done < <(ip -br link show)
    done
}

grep -Eq '^OS\.(EnableRDMA|UpdateRdmaDriver|CheckRdmaDriver)=y' /etc/waagent.conf || finish 'RDMA is off'
[[ ! $(value_of NdDriverVersion) ]] || finish 'another driver takes no addresses from the pool'
IFS='|' read -ra pairs < <(value_of IPoIB_Data)
((${#pairs[@]})) || finish 'the pool has no addresses'
[[ ${pairs[0]} == "NUMPAIRS:$((${#pairs[@]} - 1))" ]] || finish 'the pool has another number of pairs'
declare -i number
for ((tries = 60; tries; tries--)); do
    set_addresses "${pairs[@]:1}"
    ((number == ${#pairs[@]} - 1)) && finish 'all addresses are set'
    sleep 1
done
finish 'failed to set all addresses'
