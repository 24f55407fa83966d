# shellcheck shell=sh
# Which processes and listeners of a look matter. Part of stoker-host, used by observe.sh.

# Chooses the candidates: seeds, their descendants and groups, and the ancestors of all these.
# shellcheck disable=SC2016
CHOOSE='
function port_of(hex,  i, n) { n = 0; for (i = 1; i <= 4; i++) n = n * 16 + index("0123456789ABCDEF", substr(hex, i, 1)) - 1; return n }
function words(text,  g, d, i, k, n, tail, hex) { # an address of ss as /proc/net/tcp writes it: words of 32 bits, little-endian
    gsub(/[][]|%.*$/, "", text)
    if (text == "*") text = "::"
    if ((n = match(text, /[0-9]+[.][0-9.]+$/))) { split(substr(text, n), d, ".")
        if (n == 1) return sprintf("%02X%02X%02X%02X", d[4], d[3], d[2], d[1])
        text = substr(text, 1, n - 1) sprintf("%02x%02x:%02x%02x", d[1], d[2], d[3], d[4]) }
    if ((n = index(text, "::"))) { tail = substr(text, n + 2); k = tail == "" ? 0 : split(tail, d, ":")
        for (i = 1; i <= 8; i++) g[i] = 0
        for (i = 1; i <= k; i++) g[8 - k + i] = d[i]
        k = n == 1 ? 0 : split(substr(text, 1, n - 1), d, ":")
        for (i = 1; i <= k; i++) g[i] = d[i] }
    else split(text, g, ":")
    for (i = 1; i <= 8; i++) g[i] = substr("000" g[i], length(g[i]))
    for (i = 1; i <= 8; i += 2) hex = hex substr(g[i + 1], 3) substr(g[i + 1], 1, 2) substr(g[i], 3) substr(g[i], 1, 2)
    return toupper(hex) }
function listens(ino, port, address) { # told twice is one
    if (!(ino in lport)) lorder[++ln] = ino
    lport[ino] = port; laddr[ino] = address }
function ended(p,  f, text, a) { # since it was listed: one that ends has no address space, and its files are closed to all but root
    f = "/proc/" p "/stat"
    if ((getline text < f) <= 0) return 1
    close(f)
    sub(/^.*\) /, "", text)
    split(text, a, " ")
    return a[1] == "Z" || a[1] == "X" || a[21] == "0" }
function parent_of(q) { return (q in ppid) ? ppid[q] : 0 }
BEGIN { k = split(units, a, " "); for (i = 1; i <= k; i++) wanted[a[i]] = 1
    k = split(ports, a, " "); for (i = 1; i <= k; i++) needed[a[i]] = 1 }
mode == "units" { if (sub(/^MainPID=/, "") && $0 > 0) main[$0] = 1; next }
mode == "apps" { split($0, a, /, */); if (a[2] ~ /^[0-9]+$/) seed[a[2]] = 1; next }
mode == "members" { if ($0 > 0) seed[$0] = 1; next } # 0: outside this pid namespace
mode == "groups" { split($0, a, "/"); pid = a[3]; sub(/^[^:]*:/, ""); sub(/ \(deleted\)$/, "")
    if (/^0::/ || /^[0-9]+:name=systemd:/) { k = split($0, a, "/"); for (i = 2; i <= k; i++) if (a[i] in wanted) seed[pid] = 1 }
    next }
mode == "leaders" { k = split($0, a, "/"); split(a[k], b, ":LEADER="); leader[b[1]] = b[2]; next }
mode == "net" && $1 == "LISTEN" { # of ss; what it says of the cgroup, which anybody may name, comes after the inode
    if (!match($0, / ino:[1-9][0-9]* /)) next
    ino = substr($0, RSTART + 5, RLENGTH - 6); n = match($4, /:[0-9]+$/)
    listens(ino, substr($4, n + 1) + 0, words(substr($4, 1, n - 1))); next }
mode == "net" { if ($4 == "0A" && $10 != "0") { split($2, a, ":"); listens($10, port_of(a[2]), a[1]) } next }
mode == "err" { if ($0 !~ /No such (file or directory|process)$/ && $0 !~ /\/proc\/1\/fd/) {
        if ($0 ~ /Permission denied$/ && match($0, /\/proc\/[0-9]+\/fd/)) denied[substr($0, RSTART + 6, RLENGTH - 9)] = $0
        else bad = bad $0 "\n" } next }
mode == "fds" { split($1, a, "/"); pid = a[3]; sub(/^[^ ]* /, "")
    if (!/^socket:\[/ && index($0, devices) != 1) next
    if (/^socket:\[/) { ino = substr($0, 9, length($0) - 9)
        if ((ino in lport) && !seen[pid, ino]++) { owners[ino] = owners[ino] (owners[ino] == "" ? "" : ",") pid; serves[ino, pid] = 1
            if (lport[ino] in needed) seed[pid] = 1 } }
    else if (!seen[pid, $0]++) { seed[pid] = 1; sub(/.*\//, ""); gsub(/[^A-Za-z0-9._-]/, "?"); print pid, $0 > (dir "/nvfds") }
    next }
NF == 4 { letter[$1] = $2; ppid[$1] = $3; pgrp[$1] = $4 }
END {
    if (!(self in ppid) || !(1 in ppid)) bad = bad "the process table could not be read whole\n"
    for (p in denied) if ((p in letter) && letter[p] != "Z" && letter[p] != "X" && !ended(p)) bad = bad denied[p] "\n" # a zombie holds nothing
    for (p in main) seed[p] = 1
    for (p in seed) if (p in ppid) { want[p] = 1; if (p > 1 && pgrp[p] > 1) groups[pgrp[p]] = 1 }
    # Up from each process to one that is decided: no chain of processes, however long, is walked twice.
    for (p in ppid) { n = 0; for (q = p; !(q in want) && !(q in apart) && ppid[q] > 1 && (ppid[q] in ppid); q = ppid[q]) { apart[q] = 1; way[++n] = q }
        if (q in want) for (; n > 0; n--) want[way[n]] = 1 }
    for (p in ppid) if (whole || (pgrp[p] in groups)) want[p] = 1
    for (p in want) for (q = parent_of(p); q > 0 && !(q in up); q = parent_of(q)) up[q] = 1
    for (q in up) want[q] = 1
    for (p in want) pids = pids " " p
    for (p in main) if (p in ppid) mains = mains " " p
    for (n = 1; n <= ln; n++) { ino = lorder[n]; show = lport[ino] in needed; k = split(owners[ino], a, ",")
        for (i = 1; i <= k; i++) if (a[i] in want) show = 1
        if (show) print lport[ino], laddr[ino], (k ? owners[ino] : "-") > (dir "/sockets") }
    for (s in leader) { p = leader[s]; print s, ((p in letter) && letter[p] != "Z" && letter[p] != "X") ? p : 0 > (dir "/sessions") }
    printf "%s", bad > (dir "/bad")
    print pids; print mains
}'

# The units of the candidates' cgroups that were not asked for: their states decide whose the processes are.
# shellcheck disable=SC2016
OTHERS='
BEGIN { k = split(units, a, " "); for (i = 1; i <= k; i++) wanted[a[i]] = 1 }
{ split($0, a, "/"); pid = a[3]; sub(/^[^:]*:/, ""); sub(/ \(deleted\)$/, "") }
sub(/^[0-9]+:name=systemd:/, "") && !(pid in path) { path[pid] = $0 }
sub(/^0::/, "") && $0 != "/" { path[pid] = $0 } # where it says anything, it outranks the named one
END { for (pid in path) { k = split(path[pid], a, "/")
        for (i = 1; i <= k; i++) if (a[i] ~ /\.(service|scope)$/ && length(a[i]) < 256 && a[i] !~ /[^A-Za-z0-9:_.@\\-]/ && !(a[i] in wanted) && !other[a[i]]++) others = others " " a[i] }
    print others }'

ask_others() {
    others=''
    if [ "$systemd_code" = 0 ] && [ -n "$pids" ]; then
        # shellcheck disable=SC2046
        groups_of candidate_groups $(printf '/proc/%s ' $pids)
        [ "$code" -le 2 ] || { mark others "$code"; mark asked "$code"; return; }
        others=$(awk -v units="$units" "$OTHERS" "$T/candidate_groups")
    fi
    printf '%s\n%s\n' "$units" "$others" >"$T/asked"
    mark asked 0
    mark others "$systemd_code"
    # shellcheck disable=SC2086
    [ -z "$others" ] || tool others systemctl show --no-pager -p Id,ActiveState,LoadState -- $others
}

ask_ss() { # section net; false when it is not known to be whole: ss says 0 also after the kernel's answer was lost on the way
    command -v ss >/dev/null || return 1
    quick net ss -Hltne
    [ "$code" = 0 ] && [ -s "$T/net" ] || return 1
    while read -r line || [ -n "$line" ]; do # it cannot name the cgroups of others, or deleted ones: they are not needed
        case $line in *cgroup2*) ;; *) return 1 ;; esac
    done <"$T/net.err"
    while read -r line || [ -n "$line" ]; do
        case $line in 'LISTEN '*' ino:'[0-9]*' '*) ;; *) return 1 ;; esac
    done <"$T/net"
}

choose() { # sets $pids and $mains; sections nvfds, sockets and sessions come out beside them
    # shellcheck disable=SC2086
    awk -v units="$units" -v devices="${DEVICES%"*"}" -v ports="$ports" -v dir="$T" -v self=$$ -v whole="$whole" "$CHOOSE" \
        mode=units "$T/units" mode=apps "$T/apps" mode=members "$T/members" mode=groups "$T/everyone" "$T/zombies" mode=leaders "$T/leaders" mode=net "$T/net" mode=err "$T/even.err" "$T/odd.err" \
        mode=fds "$T/even.flat" "$T/odd.flat" mode=all "$T/all.flat" >"$T/chosen" 2>"$T/choose.err"
    whole_code=$?
    { read -r pids; read -r mains; } <"$T/chosen"
    # find and grep say 1 and 2 for a process that ended under their hands; what else they said is in bad.
    for bound in even:1 odd:1 all:2 everyone:2 zombies:2 net:0; do
        read -r code _ <"$T/${bound%:*}.rc"
        [ "$code" -le "${bound#*:}" ] || whole_code=1
    done
    [ ! -s "$T/bad" ] && [ -s "$T/chosen" ] || whole_code=1
}
