# shellcheck shell=sh
# The generation probe: one request where the engine is, and whose process answered it. Part of stoker-host.

facts_of_unit() { # a probe of a bare port has no unit
    [ -n "$unit" ] || { mark "$1" 1; return; }
    tool "$1" systemctl show --no-pager -p InvocationID,MainPID,ControlGroup,ActiveState -- "$unit"
}

listeners() { # lines PORT HEXADDRESS PID,…: who listens on $port; every process is asked, since anybody may
    code=1
    hex=$(printf %04X "$port")
    awk -v hex=":$hex" '$4 == "0A" && substr($2, length($2) - 4) == hex { sub(/:.*/, "", $2); print $10, $2 }' \
        /proc/net/tcp /proc/net/tcp6 >"$T/inodes" 2>/dev/null
    set --
    while read -r inode _; do
        [ $# = 0 ] || set -- "$@" -o
        set -- "$@" -lname "socket:\\[$inode\\]"
    done <"$T/inodes"
    : >"$T/sockets"
    code=0
    if [ $# != 0 ]; then
        set +f
        tool sockets find /proc/[0-9]*/fd -maxdepth 1 \( "$@" \) -printf '%h %l\n'
        set -f
        [ "$code" -le 1 ] && code=0 # 1: a process ended meanwhile
    fi
    awk -v port="$port" 'FNR == NR { split($1, a, "/"); gsub(/[^0-9]/, "", $2)
            if (!seen[a[3], $2]++) owner[$2] = owner[$2] (owner[$2] == "" ? "" : ",") a[3]; next }
        { print port, $2, ($1 in owner) ? owner[$1] : "-" }' "$T/sockets" "$T/inodes" >"$T/listeners"
    mark listeners "$code"
    listening=$(sed 's/.* //; s/-//; s/,/ /g' "$T/listeners" | tr '\n' ' ')
}

value_of() { sed -n "s/^$1=//p" "$T/$2" 2>/dev/null; } # PROPERTY SECTION

group_pids() { # the pids in the unit's cgroup, where its hierarchy is mounted
    group=$(value_of ControlGroup before)
    [ -n "$group" ] || return 0
    for root in $CGROUPS; do
        [ ! -d "$root$group" ] || find "$root$group" -name cgroup.procs -exec cat {} + 2>/dev/null | tr '\n' ' '
    done
}

safe_python() { # true when nobody but root can change what would run as root
    resolved=$(readlink -f -- "$1" 2>/dev/null) && [ -x "$resolved" ] || return 1
    place=$resolved
    while :; do
        set -- "$(stat -c '%u %a' -- "$place")"
        case $1 in 0\ *[2367][0-7] | 0\ *[2367]) return 1 ;; 0\ *) ;; *) return 1 ;; esac
        [ "$place" != / ] || return 0
        place=${place%/*}
        place=${place:-/}
    done
}

request() { # what the client reads: lines, a dot, the body
    printf '%s\n' "address $address" "port $port" "path $url_path" "method $method" "timeout $timeout_s" "pids $near"
    printf '%s' "$all_headers" | sed 's/^/header /'
    printf '.\n%s' "$content"
}

client() {
    cat <<'CLIENT_END'
# @include probe_client.py
CLIENT_END
}

with_python() { # INTERPRETER: false when it has no http
    request | timeout -k 1 $((timeout_s + 2)) "$1" -I -S -c "$(client)" >"$T/response" 2>"$T/response.err" 3>"$T/peer"
    code=$?
    [ "$code" != 97 ]
}

with_curl() { # the far end of its connection stays unknown
    printf '%s' "$all_headers" >"$T/headers"
    set -- -sS -g --path-as-is --noproxy '*' -X "$method" -m "$timeout_s" -H @- -o "$T/answer" -w '%{http_code}\n'
    if [ -n "$content" ]; then
        printf '%s' "$content" >"$T/content"
        set -- "$@" --data-binary "@$T/content"
    fi
    case $address in *:*) host="[$address]" ;; *) host=$address ;; esac
    timeout -k 1 $((timeout_s + 2)) curl "$@" "http://$host:$port$url_path" \
        <"$T/headers" >"$T/response" 2>"$T/response.err"
    code=$?
    case $code in 1 | 8 | 18 | 52) code=56 ;; esac # no HTTP, or not all of it
    [ "$code" = 0 ] || : >"$T/response"
    [ "$code" != 0 ] || [ ! -e "$T/answer" ] || head -c 65536 "$T/answer" >>"$T/response"
    : >"$T/peer"
    peer_code=78
}

ask_engine() {
    peer_code=0
    for interpreter in "$python" /usr/bin/python3; do
        [ -n "$interpreter" ] && safe_python "$interpreter" && with_python "$interpreter" && return
    done
    with_curl
}

probe() {
    fixed 10000
    [ "$units" = "${unit:+ $unit}" ] || refuse 64 "takes one unit"
    port=${ports# }
    valid "$port" 0-9 5 || refuse 64 "needs one port"
    case $url_path in /*[![:graph:]]* | [!/]*) refuse 64 "not a path" ;; esac
    [ "$body" -le 1048576 ] || refuse 64 "the body is too long"
    content=$(head -c "$body"; echo .)
    content=${content%.}
    [ "${#content}" -eq "$body" ] || refuse 64 "the request was cut"
    all_headers=$headers
    case $body:$headers in 0:* | *[Cc]ontent-[Tt]ype:*) ;; *) all_headers="Content-Type: application/json
$headers" ;; esac
    facts_of_unit before
    listeners
    near="$listening $(group_pids)"
    now
    begun=$now
    ask_engine
    case $code in 124 | 137) code=28 ;; esac
    now
    echo "$code $(((now - begun) * 10))" >"$T/response.rc"
    mark peer $peer_code
    main=$(value_of MainPID before)
    # shellcheck disable=SC2046,SC2086
    tool cgroups grep -asHZ '' $(printf '/proc/%s/cgroup ' ${main:-0} $listening $(cat "$T/peer"))
    [ "$code" -gt 2 ] || mark cgroups 0
    tool main cat "/proc/${main:-0}/cmdline"
    tool mark grep -azs '^STOKER_LAUNCH=' "/proc/${main:-0}/environ"
    facts_of_unit after
    answer 0 before listeners response peer cgroups main mark after
}
