#!/bin/bash
# A plugin of the Node Problem Detector: is this node's routing right, as its last proof says? It reads the marker in
# /run/aks-flex-node, or in the folder given (that of the host, in a container), and asks neither the network nor Python.
# Exit status: 0 right, 1 wrong, 2 unknown. stdout has at most 80 characters, since the detector cuts there.
# Words after the folder:
#   proven           for a condition that is True only after a proof: 1 right, 0 wrong or unknown
#   config=FILE      a node without this file is unknown, whatever marker a removal by hand has left in the folder
#   max-age=SECONDS  a node whose proof is older is unknown; for nodes with `watch`, which proves every `interval`
export LC_ALL=C
folder=${1:-/run/aks-flex-node} wanted='' limit='' config=''

say() { # exit status, text
    local text=$2
    # The marker has names of devices, which may be any bytes.
    [[ $text != *[![:print:]]* ]] || printf -v text %q "$text"
    printf '%s\n' "${text::80}"
    [[ $wanted != proven ]] || exit $(($1 == 0))
    exit "$1"
}

# Times in UTC of one form compare as texts.
utc() { # variable, seconds
    TZ=UTC0 printf -v "$1" '%(%Y-%m-%dT%H:%M:%SZ)T' "$2"
}

# The marker of a right node names the time of its proof in its second line. A clock that was set back makes a time of
# the future, which says as little as an old one.
require_recent() { # file
    local lines=() date now oldest newest
    [[ ! -f $1 ]] || mapfile -n 2 -t lines <"$1"
    date=${lines[1]-}
    date=${date#proven }
    [[ $date == [0-9][0-9][0-9][0-9]-*T*Z ]] || say 2 'the marker does not name the time of its proof'
    printf -v now '%(%s)T' -1
    utc oldest $((now - limit))
    utc newest $((now + limit))
    [[ $date < $oldest || $date > $newest ]] || return 0
    say 2 "the last proof is of $date, not within $limit s of now"
}

mistake=''
for word in "${@:2}"; do
    case $word in
        proven) wanted=proven ;;
        config=*)
            config=${word#*=}
            [[ $config ]] || mistake="$word: give a file"
            ;;
        max-age=*)
            limit=${word#*=}
            [[ $limit =~ ^[1-9][0-9]{0,8}$ ]] || mistake="$word: give a number of seconds"
            ;;
        *) mistake="unknown word $word: use proven, config=FILE or max-age=SECONDS" ;;
    esac
done
[[ ! $mistake ]] || say 2 "$mistake"
[[ ! $config || -e $config ]] || say 2 "no config is installed: there is no $config"

if [[ -e $folder/route-overlap.detected ]]; then
    # The first finding; a run that was killed leaves both markers, and then this one counts.
    line=''
    [[ ! -f $folder/route-overlap.detected ]] || IFS= read -rn 400 line <"$folder/route-overlap.detected"
    say 1 "${line:-expected addresses would not leave by this node}"
fi
[[ -e $folder/route-overlap.ok ]] || say 2 "no proof since the boot: there is no marker in $folder"
[[ ! $limit ]] || require_recent "$folder/route-overlap.ok"
say 0 'expected addresses leave by this node'
