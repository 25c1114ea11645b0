# Run the program and print its answer. The exit status is 10, 11 or 12; 13 if no Python can run it;
# or any other status after a crash.
run_program() { # seconds, verb and its arguments
    local folder python=''
    # Resolve the link, because Python opens the file repeatedly while an apply may exchange the link.
    folder=$(cd -P /etc/aks-flex-node/hostrouting 2> /dev/null && pwd) || folder=/etc/aks-flex-node
    # The first line names the interpreter.
    { IFS= read -r python < "$folder/hostrouting.zip"; } 2> /dev/null
    python=${python#'#!'}
    python=${python%' -IS'}
    [[ -f $python && -x $python ]] || python=/usr/bin/python3
    if [[ ! -f $python || ! -x $python ]]; then
        echo "there is no Python 3.10 or newer; install it as $python"
        return 13
    fi
    "${limits[@]}" timeout --kill-after=1 "$1" "$python" -I -S "$folder/hostrouting.zip" "${@:2}"
}
