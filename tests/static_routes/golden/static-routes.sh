#!/bin/bash
# The static routes of this node, put in place at every boot and before each start of a gated unit.
# Installed by hostrouting, which writes it anew from its config; `hostrouting reset` takes it away.
#
# Exits 0 when every route below is in force and no other route carries our mark, else 1, and the journal says for each
# route what is wrong; what could be done stays done. When all is well two calls of `ip` are all it takes, however many
# routes there are.
set -u
set -f # No word of ip's is a pattern for file names.
export LC_ALL=C

protocol=142 # The mark of our routes.
waits=30     # Seconds, in all, for DHCP to bring a default route.

# As ip reads them; a ? is looked up in the default routes.
routes=(
  '172.16.1.0/24 via 172.18.1.1 dev eth0'
  '172.16.2.0/24 via ? dev ?'
  '10.0.0.0/8 metric 100 via 10.1.0.1 dev ?'
  '169.254.169.254 metric 4294967295 via ? dev bond0.100'
)

declare -A by_dev=() own=()
ours=() refused=() mend=() wrong=()

say() {
  printf '%s\n' "$1" >&2
}

# Split a route, as `ip -o route show` prints it, into `kind`, `destination`, `metric`, `elsewhere` (its table, its type
# of service), the next hops in hop_dev, hop_gateway and hop_onlink, and into `rest`: what is behind the destination but
# for the metric and the state of the links.
parse_route() {
  local words word dev='' gateway='' onlink='' i
  read -ra words <<<"${1//\\/ }"
  kind=unicast metric=0 elsewhere='' hop_dev=() hop_gateway=() hop_onlink=()
  case ${words[0]} in
    local | broadcast | anycast | multicast | blackhole | unreachable | prohibit | throw | nat | xresolve)
      kind=${words[0]}
      words=("${words[@]:1}")
      ;;
  esac
  destination=${words[0]} rest=''
  for ((i = 1; i < ${#words[@]}; i++)); do
    word=${words[i]}
    case $word in
      dead | linkdown | offload | rt_offload | offload_failed | trap | rt_trap | unresolved) continue ;;
      nexthop)
        [[ -n $dev ]] && hop_dev+=("$dev") hop_gateway+=("$gateway") hop_onlink+=("$onlink")
        dev='' gateway='' onlink=''
        ;;
      onlink) onlink=' onlink' ;;
      # What has its value behind it: a device may be called anything, even `linkdown`.
      dev | via | metric | table | tos)
        i=$((i + 1))
        case $word in
          dev) dev=${words[i]} ;;
          via) gateway=${words[i]} ;;
          metric) metric=${words[i]} ;;
          *) elsewhere+=" $word ${words[i]}" ;;
        esac
        word+=" ${words[i]}"
        ;;
    esac
    [[ $word == 'metric '* ]] || rest+=" $word"
  done
  [[ -n $dev ]] && hop_dev+=("$dev") hop_gateway+=("$gateway") hop_onlink+=("$onlink")
}

# Read the next hops of the default routes, lowest metric first, and where the kernel's own routes lead.
look() {
  local answer line i
  if ! answer=$(printf 'route show table main %s\n' 'exact default' 'proto kernel' | ip -4 -o -batch - 2>&1); then
    say "cannot read the routes: $answer"
    exit 1
  fi
  first_dev='' by_dev=() own=()
  while IFS= read -r line; do # With the blank at its end.
    case $line in
      # One for a type of service is for few packets, and one with our mark cannot be what we go by.
      '' | 'default tos '* | default*" proto $protocol "*) ;;
      'default '*)
        parse_route "$line"
        for i in "${!hop_dev[@]}"; do
          first_dev=${first_dev:-${hop_dev[i]}}
          # `via inet6 ADDRESS` is a gateway of the other family. The slash is for a device called @ or *.
          [[ ${hop_gateway[i]} == inet6 || -n ${by_dev["/${hop_dev[i]}"]+set} ]] && continue
          if [[ -n ${hop_gateway[i]} ]]; then
            by_dev["/${hop_dev[i]}"]=" via ${hop_gateway[i]} dev ${hop_dev[i]}${hop_onlink[i]}"
          else
            by_dev["/${hop_dev[i]}"]=" dev ${hop_dev[i]} scope link"
          fi
        done
        ;;
      *)
        parse_route "$line"
        [[ -z $elsewhere ]] && own["$destination $metric"]=${line% }
        ;;
    esac
  done <<<"$answer"
}

# Fill `ours` with the routes, all that is looked up filled in, on-link ones first; `missing` says what cannot be looked
# up, and `refused` holds those whose place the kernel holds.
resolve() {
  local destination line hop dev all on_link=() by_gateway=()
  missing='' refused=() ours=("${routes[@]}")
  printf -v all '|%s' "${routes[@]}"
  if [[ $all == *\?* ]]; then
    for line in "${routes[@]}"; do
      dev=${line##* } hop=''
      [[ $dev == \? ]] && dev=$first_dev
      if [[ -z $dev ]]; then
        missing='table main has no IPv4 default route'
      elif [[ $line != *' via ? '* ]]; then
        hop="${line#"${line%% via *}"}"
        hop="${hop% *} $dev"
      elif [[ -n ${by_dev["/$dev"]+set} ]]; then
        hop=${by_dev["/$dev"]}
      else
        missing="no IPv4 default route leaves by $dev, so it has no gateway there"
      fi
      if [[ $hop == ' dev '* ]]; then
        on_link+=("${line%% via *}$hop")
      else
        by_gateway+=("${line%% via *}$hop")
      fi
    done
    ours=("${on_link[@]}" "${by_gateway[@]}")
  fi
  for destination in "${!own[@]}"; do
    if [[ $all == *"|${destination% *} "* ]]; then
      refuse_own
      break
    fi
  done
}

# Move from `ours` to `refused` what would overwrite a route of the kernel's own.
refuse_own() {
  local line accepted=()
  for line in "${ours[@]}"; do
    parse_route "$line"
    if [[ -n ${own["$destination $metric"]+set} ]]; then
      refused+=("$line: the kernel's own route '${own["$destination $metric"]}' has this destination and metric, and \
is never overwritten; configure narrower destinations, or another metric")
    else
      accepted+=("$line")
    fi
  done
  ours=("${accepted[@]}")
}

# Delete what is in `mend`, put `ours` in place, and see which routes carry our mark then. Afterwards `mend` holds those
# that have to go, and `wrong` what was refused.
apply() {
  local deletions=${#mend[@]} lines=("${mend[@]}" "${ours[@]}") answer=() batch='' text=''
  ((deletions)) && printf -v batch 'route delete %s\n' "${mend[@]}"
  ((${#ours[@]})) && printf -v text "route replace %s proto $protocol\\n" "${ours[@]}"
  # Through a pipe: bash would put a long here-document into a temporary file, and may have no place for one.
  text=$(printf '%s' "$batch" "$text" "route show table all proto $protocol" | ip -4 -o -force -batch - 2>&1)
  local status=$? IFS=$'\n'
  # shellcheck disable=SC2206 # It is to be split, and that is thirty times as fast as mapfile.
  answer=($text)
  IFS=$' \t\n' mend=() wrong=()
  # Nothing was refused, and of our routes there are as many as there should be: no need to look at each.
  ((status == 0 && ${#answer[@]} == ${#ours[@]})) || compare
}

# The part of `apply` that is for when something is wrong.
compare() {
  local -A wanted=() asked=() named=() why=() seen=()
  local i key deletion said='' number behind=0 order=()
  for i in "${!routes[@]}"; do
    parse_route "${routes[i]}"
    wanted["$destination $metric"]=1
  done
  # Refusals come first, each with its line's number behind it, since the list of our routes is asked for last.
  for i in "${!answer[@]}"; do
    if [[ ${answer[i]} != 'Command failed -:'* ]]; then
      said+="${said:+; }${answer[i]}"
      continue
    fi
    behind=$((i + 1)) number=$((${answer[i]##*:} - 1))
    if ((number >= ${#lines[@]})); then
      say "cannot read which routes are ours: $said"
      exit 1
    elif ((number < deletions)); then
      wrong+=("${lines[number]} is still there: $said")
    else
      parse_route "${lines[number]}"
      key="$destination $metric"
      order+=("$key") asked["$key"]=$rest why["$key"]=$said named["$key"]=${lines[number]}
    fi
    said=''
  done
  for ((i = behind; i < ${#answer[@]}; i++)); do
    parse_route "${answer[i]}"
    if [[ $destination != [0-9]* && $destination != default ]]; then
      say "ip stopped before it had read everything: ${answer[i]}"
      exit 1
    fi
    key="$destination $metric"
    # The mark before the rest, for behind `nexthop` ip expects nothing else.
    deletion="$kind $destination proto $protocol"
    ((metric)) && deletion+=" metric $metric"
    # ip would take a `local` one to be in table local.
    [[ $elsewhere == *' table '* ]] || deletion+=' table main'
    deletion+=$rest
    if [[ -n $elsewhere || -z ${wanted["$key"]+set} || -n ${seen["$key"]+set} ]]; then
      mend+=("$deletion")
      continue
    fi
    seen["$key"]=1
    [[ ${asked["$key"]-} == "$rest" ]] || continue
    if [[ ${why["$key"]} == *'File exists'* ]]; then
      # It stands behind another route of the same place, where it decides nothing, and cannot be made the first.
      mend+=("$deletion")
    else
      # What stands already has no need of being accepted again.
      asked["$key"]=''
    fi
  done
  for key in "${order[@]}"; do
    [[ -n ${asked["$key"]} ]] && wrong+=("${named["$key"]}: ${why["$key"]}")
  done
}

for ((second = 0; ; second++)); do
  look
  resolve
  [[ -z $missing ]] && break
  if ((second == waits)); then
    say "no route was changed: $missing, also not after $waits s; see why DHCP or the network's configuration brings none"
    exit 1
  elif ((second == 0)); then
    say "waiting up to $waits s: $missing"
    # A pipe that says nothing: to sleep without another program.
    exec {never}<> <(:)
  fi
  read -rt 1 -u "$never"
done

# Adds before removes, so that no packet finds a place empty: what has to go goes in the second round, which also shows
# that it went. A third one is for a route that had to be taken from behind another first.
for _ in 1 2 3; do
  apply
  ((${#mend[@]})) || break
done
for line in "${refused[@]}" "${wrong[@]}"; do
  say "refused: $line"
done
for line in "${mend[@]}"; do
  say "cannot be removed: $line"
done
((${#refused[@]} + ${#wrong[@]} + ${#mend[@]})) && exit 1
printf '%s\n' "routes in force: ${#ours[@]}"
