#!/bin/bash
# A plugin of the Node Problem Detector: is this node's routing right, according to its last check? It
# reads the marker in /run/hostrouting, or in the folder given (that of the host, in a container),
# and asks neither the network nor Python.
# Exit status: 0 right, 1 wrong, 2 unknown. stdout has at most 80 characters, since the detector
# cuts there. Words after the folder:
#   proven           for a condition that is True only after a check: 1 right, 0 wrong or unknown
#   config=FILE      a node without this file is unknown, whatever marker a removal by hand has left
#                    in the folder
#   max-age=SECONDS  a node whose check is older is unknown; for nodes with `watch`, which checks
#                    every `interval`
export LC_ALL=C
folder=${1:-/run/hostrouting}
wanted='' limit='' config='' mistake='' finding=''
right=$folder/route-overlap.ok
wrong=$folder/route-overlap.detected

answer() { # exit status, text
    local status=$1 text=$2
    # The marker has names of devices, which may be any bytes.
    [[ $text == *[![:print:]]* ]] && printf -v text %q "$text"
    printf '%s\n' "${text::80}"
    # This condition is a 1 where routing is right.
    [[ $wanted == proven ]] && exit $((status == 0))
    exit "$status"
}

# The second line of a healthy node's marker has the time of its check. A clock that was set
# back makes a time of the future, which says as little as an old one.
require_recent() {
    local lines=() date oldest newest
    [[ -f $right ]] && mapfile -n 2 -t lines < "$right"
    date=${lines[1]-}
    date=${date#proven }
    if [[ $date != [0-9][0-9][0-9][0-9]-*T*Z ]]; then
        answer 2 'the marker does not have the time of its check'
    fi
    # Times in UTC of one form compare as texts.
    TZ=UTC0 printf -v oldest '%(%Y-%m-%dT%H:%M:%SZ)T' $((EPOCHSECONDS - limit))
    TZ=UTC0 printf -v newest '%(%Y-%m-%dT%H:%M:%SZ)T' $((EPOCHSECONDS + limit))
    if [[ $date < $oldest || $date > $newest ]]; then
        answer 2 "the last check is of $date, not within $limit s of now"
    fi
}

for word in "${@:2}"; do
    value=${word#*=}
    case $word in
        proven) wanted=proven ;;
        config=?*) config=$value ;;
        config=) mistake="$word: give a file" ;;
        max-age=*)
            limit=$value
            [[ $limit =~ ^[1-9][0-9]{0,8}$ ]] || mistake="$word: give a number of seconds"
            ;;
        *) mistake="unknown word $word: use proven, config=FILE or max-age=SECONDS" ;;
    esac
done
[[ $mistake ]] && answer 2 "$mistake"
[[ ! $config || -e $config ]] || answer 2 "no config is installed: there is no $config"
if [[ -e $wrong ]]; then
    # The first finding; a run that was killed leaves both markers, and then this one counts.
    [[ -f $wrong ]] && IFS= read -rn 400 finding < "$wrong"
    answer 1 "${finding:-expected addresses would not leave through this node}"
fi
[[ -e $right ]] || answer 2 "no check since the boot: there is no marker in $folder"
[[ $limit ]] && require_recent
answer 0 'expected addresses leave through this node'
