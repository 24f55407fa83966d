# shellcheck shell=sh
# What engines leave in /dev/shm: who of it is anybody's still, and taking away what nobody's is. Part of stoker-host.

LEFT_NAMES='nccl-* cuda.shm.* sglang_loads_* sgl_shm_* sglang_host_pool_*.mmap multi_tokenizer_args_* psm_* torch_* sem.mp-* sem.loky-*'
MOST_LEFT=500
WENT_AWAY='No such (file or directory|process)$|/proc/1/(fd|maps)' # what init has is no engine's

list_left() { # into $T/left: NAME UID USER SIZE INODE CHANGED of each plain file of such a name that has no second one
    set -f
    set --
    for pattern in $LEFT_NAMES; do set -- "$@" -o -name "$pattern"; done
    shift
    : >"$T/left"
    [ -d "$SHM" ] || return 0
    quick left find "$SHM" -xdev -maxdepth 1 -type f -links 1 \( "$@" \) -printf '%f %U %u %s %i %C@\n'
    [ "$code" -le 1 ] || return 1 # 1: a file that went away meanwhile
    grep -E '^[A-Za-z0-9._-]{1,200} [0-9]+ [A-Za-z0-9._$-]+ [0-9]+ [0-9]+ [0-9]+\.[0-9]+$' "$T/left" | head -n "$MOST_LEFT" >"$T/left.plain"
    mv "$T/left.plain" "$T/left"
}

# A process in another mount namespace may see the folder elsewhere: a mapping is known by device and inode, an open file
# by its last name.
# shellcheck disable=SC2016
HELD='
mode == "left" { inode[$5] = $1; name[$1] = 1; line[++n] = $0; next }
mode == "maps" { if ($4 == device && ($5 in inode)) held[inode[$5]] = 1; next }
{ sub(/ \(deleted\)$/, ""); sub(/.*\//, ""); if ($0 in name) held[$0] = 1 }
END { for (i = 1; i <= n; i++) { split(line[i], a, " "); print line[i], (a[1] in held) ? "held" : "free" } }'

hold_left() { # SCAN…: into $T/shm the same lines with `held` or `free`; false when that could not be seen for everybody
    device=$(awk -v at="$SHM" '$5 == at { split($3, a, ":"); d = sprintf("%02x:%02x", a[1], a[2]) } END { print d }' /proc/self/mountinfo)
    [ -n "$device" ] || { echo "$SHM is no file system of its own" >"$T/shm"; return 1; }
    set +f
    # shellcheck disable=SC2046
    tool maps grep -hF " $device " $(printf '%s/maps ' /proc/[0-9]*)
    set -f
    grep -vE "$WENT_AWAY" "$T/maps.err" >"$T/shm" && return 1
    [ "$code" -le 2 ] || { echo "mappings: exit status $code" >"$T/shm"; return 1; }
    for scan in "$@"; do tr '\n\0' '\001\n' <"$T/$scan" || return; done >"$T/open"
    awk -v device="$device" "$HELD" mode=left "$T/left" mode=maps "$T/maps" mode=fds "$T/open" >"$T/shm"
}

leftovers() { # section shm: the host's clock and for how long (1/100 s) this look has lasted, then a line for each file; who holds it is asked only where there is one
    if ! list_left; then
        mark shm "$code"
        return
    fi
    [ "$whole_code" = 0 ] || { mark shm "$whole_code"; return; }
    if [ -s "$T/left" ]; then
        hold_left even odd || { mark shm 1; return; }
    else
        : >"$T/shm"
    fi
    now
    { echo "now $(date +%s.%N) $((now - begun_look))"; cat "$T/shm"; } >"$T/shm.now"
    mv "$T/shm.now" "$T/shm"
    mark shm 0
}

fds_now() { # into $T/fds every open file of everybody, as a look has it; false when it could not be read whole
    set +f
    scan_fds fds /proc/[0-9]*
    set -f
    [ "$code" -le 1 ] && ! grep -qvE "$WENT_AWAY" "$T/fds.err"
}

sweep_shm() { # each file is looked at again in the step that removes it
    one_unit
    [ -n "$targets" ] || refuse 64 "no target"
    printf '%s' "$targets" >"$T/targets"
    while read -r name uid inode changed more; do
        valid "$name" A-Za-z0-9._- 200 && valid "$uid" 0-9 10 && valid "$inode" 0-9 20 && valid "$changed" 0-9. 40 &&
            [ -z "$more" ] || refuse 64 "not a target"
    done <"$T/targets"
    may_change
    unit_ground
    case $state in inactive | failed) ;; *) refuse 64 "$unit is to be down" ;; esac
    fixed "$limit_ms"
    list_left || refuse 1 "$SHM cannot be read"
    fds_now || refuse 1 "not everybody's open files can be read: $(head -c 500 "$T/fds.err")"
    hold_left fds || refuse 1 "$(cat "$T/shm")"
    while read -r name uid inode changed; do
        now_shows=$(awk -v name="$name" '$1 == name { print $2, $5, $6, $7 }' "$T/shm")
        case $now_shows in
        '') echo "$name gone" ;;
        "$uid $inode $changed free") if rm -f -- "$SHM/$name"; then echo "$name ok"; else echo "$name failed"; fi ;;
        *) echo "$name changed" ;;
        esac
    done <"$T/targets" >"$T/result"
    mark result 0
    answer 0 result
}
