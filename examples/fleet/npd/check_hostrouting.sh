#!/bin/bash
# A plugin of the Node Problem Detector: is this node's routing right, as its last proof says? It reads the marker in
# /run/aks-flex-node, or in the folder given (that of the host, in a container), and asks neither the network nor Python.
# Exit status: 0 right, 1 wrong, 2 unknown. stdout has at most 80 characters, since the detector cuts there.
# With `proven` as the second argument, for a condition that is True only after a proof: 1 right, 0 wrong or unknown.
export LC_ALL=C
folder=${1:-/run/aks-flex-node} wanted=${2:-}

say() { # exit status, text
    local text=$2
    # The marker has names of devices, which may be any bytes.
    [[ $text != *[![:print:]]* ]] || printf -v text %q "$text"
    printf '%s\n' "${text::80}"
    [[ $wanted != proven ]] || exit $(($1 == 0))
    exit "$1"
}

if [[ -e $folder/route-overlap.detected ]]; then
    # The first finding; a run that was killed leaves both markers, and then this one counts.
    line=''
    [[ ! -f $folder/route-overlap.detected ]] || IFS= read -rn 400 line <"$folder/route-overlap.detected"
    say 1 "${line:-expected addresses would not leave by this node}"
fi
[[ ! -e $folder/route-overlap.ok ]] || say 0 'expected addresses leave by this node'
say 2 "no proof since the boot: there is no marker in $folder"
