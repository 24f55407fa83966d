# shellcheck shell=sh
# The verbs that change something: each under one lock, each refused before anything is done. Part of stoker-host.

# ---- what every change checks, in this order: a person's hold, the fence, the ground ----

lock() {
    mkdir -p -m 0755 "$STATE" && mkdir -p -m 0700 "$STATE/units" || refuse 78 "$STATE cannot be written"
    true 2>/dev/null >>"$STATE/lock" || refuse 78 "$STATE/lock cannot be written"
    exec 9>>"$STATE/lock"
    flock -w 20 9 || refuse 1 "another change on this host has not ended for 20 s"
    [ ! -e "$HOLD" ] && [ ! -L "$HOLD" ] || refuse 77 "$(head -c 1000 "$HOLD" 2>/dev/null)"
}

valid_fence() { # STORE EPOCH RUN
    # shellcheck disable=SC2086
    set -- $1
    [ $# = 3 ] && valid "$1" A-Za-z0-9_- 64 && valid "$2" 0-9 15 && valid "$3" A-Za-z0-9_- 64
}

present_fence() { # sets $present, `-` when there is none; section fence
    present=-
    [ ! -e "$STATE/fence" ] || IFS= read -r present <"$STATE/fence" || refuse 1 "$STATE/fence cannot be read"
    echo "$present" >"$T/fence"
    mark fence 0
}

may_change() {
    lock
    present_fence
    valid_fence "$fence" || refuse 64 "no fence"
    [ "$fence" = "$present" ] || refuse 76 "this host is fenced by $present" fence
    read -r boot_now </proc/sys/kernel/random/boot_id
    [ "$boot" = "$boot_now" ] || refuse 75 "the host was booted since: $boot_now"
}

step() { # COMMAND…: one bounded command whose failure ends the verb, with what it said
    timeout -k 5 90 "$@" >"$T/out" 2>&1 </dev/null 9>&- || {
        code=$?
        refuse 1 "$* (exit status $code): $(head -c 2000 "$T/out")"
    }
}

show() { # PROPERTY: one property of $unit
    shown=$(timeout -k 5 30 systemctl show --no-pager -p "$1" --value -- "$unit" 2>"$T/out" 9>&-) ||
        refuse 1 "systemctl show -p $1 $unit (exit status $?): $(head -c 2000 "$T/out")"
}

put_file() { # FILE MODE: puts $T/new there: whole or not at all, and surely
    temporary=$1.stoker-new
    { cat "$T/new" >"$temporary" && chmod "$2" "$temporary" && sync "$temporary" && mv -fT "$temporary" "$1" &&
        sync "${1%/*}"; } 2>"$T/out" 9>&- || refuse 1 "writing $1: $(head -c 500 "$T/out")"
}

done_with() { # TEXT: the verb succeeded
    echo "$1" >"$T/result"
    mark result 0
    answer 0 result
}

# ---- the verbs ----

take_fence() { # compare and swap: whoever stands there must be the one the caller knows
    lock
    present_fence
    valid_fence "$fence" || refuse 64 "no fence"
    [ "$expected" = "$present" ] || refuse 76 "this host is fenced by $present" fence
    echo "$fence" >"$T/new"
    put_file "$STATE/fence" 0644
    done_with "$fence"
}

one_unit() { [ -n "$unit" ] && [ "$units" = " $unit" ] || refuse 64 "needs one unit"; }

own_path() { # only these two places are ever written
    one_unit
    [ "$path" = "$UNITS/$unit" ] || [ "$path" = "$UNITS/$unit.d/50-stoker.conf" ] || refuse 64 "not a path for this unit"
}

hash_of() { # FILE: sets $found, `-` when there is none
    found=-
    [ ! -e "$1" ] || found=$(sha256sum <"$1") || refuse 1 "$1 cannot be read"
    found=${found%% *}
}

same_file() { # FILE: it must be the one at $path that the change was decided on; `-` is none
    hash_of "$1"
    [ "$found" = "$ground" ] || refuse 75 "$path is not the file this was decided on"
}

check_file() {
    [ ! -L "$path" ] || refuse 75 "$path is a symbolic link"
    same_file "$path"
}

take_body() { # BYTES FILE
    head -c "$1" >"$2"
    [ "$(wc -c <"$2")" -eq "$1" ] || refuse 64 "the request was cut"
}

put_unit() {
    own_path
    [ "$body" -gt 0 ] && [ "$body" -le 1048576 ] && [ "$gate" -le 1048576 ] || refuse 64 "needs body and gate"
    take_body "$body" "$T/text"
    take_body "$gate" "$T/new"
    may_change
    check_file
    put_file "$STATE/units/$unit" 0644
    mkdir -p -m 0755 "${path%/*}" || refuse 1 "${path%/*} cannot be made"
    mv "$T/text" "$T/new"
    put_file "$path" 0644
    step systemctl daemon-reload
    show NeedDaemonReload
    [ "$shown" = no ] || refuse 1 "$unit still needs a daemon-reload"
    done_with "wrote $path"
}

own_dropin() { # a drop-in in one of the unit's own folders, by a plain name
    one_unit
    dropin=${path##*/}
    valid "$dropin" A-Za-z0-9:_.@- 200 || refuse 64 "not a drop-in of this unit"
    case $dropin in ?*.conf) ;; *) refuse 64 "not a drop-in of this unit" ;; esac
    [ ! -L "${path%/*}" ] || refuse 64 "${path%/*} is a link: what lies there is not this unit's alone"
    for folder in "$UNITS" $DROPINS; do
        [ "$path" != "$folder/$unit.d/$dropin" ] || return 0
    done
    refuse 64 "not a drop-in of this unit"
}

keep_copy() { # sets $kept: what lies at $path, whole and surely, where it is kept
    aside=$STATE/set-aside/$unit
    mkdir -p -m 0700 "$STATE/set-aside" "$aside" || refuse 78 "$aside cannot be made"
    kept=$aside/$dropin.$(date -u +%Y%m%dT%H%M%SZ)
    base=$kept n=0
    while [ -e "$kept" ]; do n=$((n + 1)) kept=$base.$n; done
    { cp -pL "$path" "$aside/new" && sync "$aside/new"; } 2>"$T/out" 9>&- || refuse 1 "copying $path: $(head -c 500 "$T/out")"
    same_file "$aside/new"
    { mv -T "$aside/new" "$kept" && sync "$aside"; } 2>"$T/out" 9>&- || refuse 1 "writing $kept: $(head -c 500 "$T/out")"
}

set_aside() { # kept first, then taken out under another name, looked at again, and only then removed
    own_dropin
    may_change
    same_file "$path"
    keep_copy
    taken=$path.$nonce # no `.conf`: systemd does not read it; and nobody's file
    mv -T "$path" "$taken" 2>"$T/out" 9>&- || {
        rm -f "$kept" # nothing was moved: one copy more at each try would fill the disk
        refuse 1 "moving $path: $(head -c 500 "$T/out")"
    }
    hash_of "$taken"
    if [ "$found" != "$ground" ]; then
        mv -nT "$taken" "$path"
        rm -f "$kept"
        refuse 75 "$path was changed meanwhile"
    fi
    rm -f "$taken" || refuse 1 "$taken cannot be removed"
    sync "${path%/*}"
    rmdir "${path%/*}" 2>/dev/null # stays when others keep files there
    step systemctl daemon-reload
    done_with "moved $path to $kept"
}

remove_unit() { # with the ground `-` the file is gone already: what else is ours goes
    own_path
    may_change
    check_file
    show ActiveState
    case $shown in inactive | failed) ;; *) refuse 75 "$unit is $shown" ;; esac
    [ "$shown" != failed ] || step systemctl reset-failed -- "$unit"
    [ "$path" != "$UNITS/$unit" ] || [ "$found" = - ] || step systemctl disable -- "$unit"
    rm -f "$path" "$STATE/units/$unit" || refuse 1 "$path cannot be removed"
    rmdir "$UNITS/$unit.d" 2>/dev/null # stays when others keep files there
    sync "$UNITS"
    step systemctl daemon-reload
    done_with "removed $path"
}

unit_ground() {
    show InvocationID
    [ "${shown:--}" = "$ground" ] || refuse 75 "$unit has invocation ${shown:--} now"
    show ActiveState
    [ "$shown" = "$state" ] || refuse 75 "$unit is $shown now"
}

unit_verb() { # start | stop | restart | enable | disable
    one_unit
    may_change
    unit_ground
    case $1 in
    start | restart)
        # A definition that waits for a reload would be started in its old form.
        show NeedDaemonReload
        [ "$shown" = no ] || step systemctl daemon-reload
        # The start limit bounds systemd, not us. A unit that is not in memory has no count to forget.
        timeout -k 5 90 systemctl reset-failed -- "$unit" >"$T/out" 2>&1 </dev/null 9>&- || {
            code=$?
            grep -q 'not loaded' "$T/out" || refuse 1 "systemctl reset-failed $unit (exit status $code): $(head -c 2000 "$T/out")"
        }
        step systemctl --no-block "$1" -- "$unit"
        ;;
    stop) step systemctl --no-block stop -- "$unit" ;;
    *) step systemctl "$1" -- "$unit" ;;
    esac
    done_with "$(head -c 2000 "$T/out")"
}

ancestors() { # sets $protected to our own ancestors and ourselves
    protected=" 1 $$ "
    p=$$
    while stat_of "$p"; do
        # shellcheck disable=SC2086
        set -- $stat
        p=$2
        [ "$p" -gt 1 ] || break
        protected="$protected$p "
    done
}

cgroup_of() { # PID: sets $group to its cgroup: the unified one where it says anything, else that named systemd
    group='' named=''
    while IFS= read -r line; do
        case $line in
        0::*) group=${line#0::} ;;
        *:name=systemd:*) named=${line#*:name=systemd:} ;;
        esac
    done 2>/dev/null <"/proc/$1/cgroup"
    case $group in '' | /) group=${named:-$group} ;; esac
    group=${group%' (deleted)'}
}

untouchable() { # PID: ours or an ancestor, a thread of the kernel, or what a login or systemd hangs on
    case $protected in *" $1 "*) return 0 ;; esac
    # shellcheck disable=SC2086
    set -- "$1" $stat
    [ $(($8 & 0x00200000)) = 0 ] || return 0 # PF_KTHREAD, field 9 of the line
    comm=''
    { IFS= read -r comm; } 2>/dev/null <"/proc/$1/comm"
    case $comm in
    sshd | sshd-session | sshd-auth | systemd | systemd-* | dbus-daemon | dbus-broker* | stoker-host) return 0 ;;
    esac
    return 1
}

send_signal() { # each target is looked at again in the step that signals it; the body has their cgroups, one a line
    case $signal in TERM | KILL | CONT) ;; *) refuse 64 "not a signal of ours" ;; esac
    [ -n "$targets" ] || refuse 64 "no target"
    printf '%s' "$targets" >"$T/targets"
    while read -r pid start more; do
        valid "$pid" 0-9 9 && valid "$start" 0-9 20 && [ -z "$more" ] || refuse 64 "not a target"
        case $pid in 0*) refuse 64 "not a target" ;; esac
    done <"$T/targets"
    [ "$body" -le 1048576 ] || refuse 64 "too many cgroups"
    take_body "$body" "$T/groups"
    [ "$body" = 0 ] || [ "$(wc -l <"$T/groups")" -eq "$(wc -l <"$T/targets")" ] || refuse 64 "needs a cgroup for each target"
    may_change
    ancestors
    while read -r pid start <&3; do
        seen=''
        IFS= read -r seen <&4
        signal_one
        echo "$pid $came"
    done 3<"$T/targets" 4<"$T/groups" >"$T/result"
    mark result 0
    answer 0 result
}

signal_one() { # signals $pid of $start seen in $seen, and sets $came to what came of it
    if ! ticks_of "$pid" || [ "$letter" = Z ] || [ "$letter" = X ]; then
        came=gone
    elif untouchable "$pid"; then
        came=protected
    elif [ "$ticks" != "$start" ]; then
        came=changed
    elif [ "$body" != 0 ] && { cgroup_of "$pid"; [ -z "$group" ] || [ "$group" != "$seen" ]; }; then
        came=moved
    elif kill -s "$signal" "$pid" 2>/dev/null; then
        came=ok
    elif ticks_of "$pid"; then
        came=failed
    else
        came=gone
    fi
}
