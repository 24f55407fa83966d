# shellcheck shell=sh
# What changes rarely and is kept under /run between looks: the driver's counters of faults, and lines of the kernel log.
# Part of stoker-host.

# What is asked of the driver, the newest first: a field that it does not know makes the whole question fail (status 2).
FAULTS=ecc.errors.uncorrected.volatile.total,retired_pages.pending
REMAPS=remapped_rows.pending,remapped_rows.failure
HEALTH_TICKS=3000 # asked again after 30 s
KERNEL_TICKS=2000 # read again after 20 s; the whole log of the kernel's own ring takes 14 ms

ask_health() { # beside the other two questions, when it is due; $mine is now
    asked='' known=1
    [ ! -r "$RUN/health" ] || read -r asked _ known <"$RUN/health"
    [ -z "$asked" ] || [ $((mine - asked)) -ge "$HEALTH_TICKS" ] || return 0
    while :; do
        case $known in
        1) fields=$FAULTS,$REMAPS,gpu_recovery_action ;;
        2) fields=$FAULTS,$REMAPS ;;
        *) fields=$FAULTS ;;
        esac
        ask_smi health "--query-gpu=uuid,$fields"
        read -r code _ <"$T/health.rc"
        [ "$code" = 2 ] && [ "$known" -lt 3 ] || break
        known=$((known + 1))
    done
    { echo "$mine $code $known"; head -c 65536 "$T/health"; } >"$T/health.kept"
    [ "$code" = 124 ] || mv "$T/health.kept" "$RUN/health" 2>/dev/null # stays this look's own where it cannot be kept
}

kept_health() { # the section, out of what is kept
    kept=$T/health.kept
    [ -r "$kept" ] || kept=$RUN/health
    [ -r "$kept" ] || { mark health "$missing"; return; }
    { read -r asked code _; echo "asked $asked"; cat; } <"$kept" >"$T/health"
    mark health "$code"
}

# Of each error the last line of each card, of each process ended for want of memory what was said of it; by the time of
# the last line. Lines of the ring come again with every reading; those that fell out of it since are kept.
# shellcheck disable=SC2016
STANDING='
function keep(key) { if (!(key in at)) keys[++n] = key; at[key] = ++m; line[m] = substr($0, 1, 500); key_of[m] = key }
match($0, /Xid \([^)]*\): [0-9]+/) { keep(substr($0, RSTART, RLENGTH)); next }
/NVRM: loading NVIDIA / { keep("loading"); next }
match($0, /stoker: GPU [0-9A-Fa-f:.]+ is well/) { keep(substr($0, RSTART, RLENGTH)); next }
/oom-kill:constraint=/ && match($0, /,pid=[0-9]+,uid=/) { keep("group " substr($0, RSTART, RLENGTH)); next }
match($0, /[Kk]ill(ed)? process [0-9]+/) { keep("victim " substr($0, RSTART, RLENGTH)) }
END { for (i = 1; i <= m; i++) if (at[key_of[i]] == i) total[kind(i)]++
    for (i = 1; i <= m; i++) if (at[key_of[i]] == i && ++n_of[kind(i)] > total[kind(i)] - 200) print line[i] }
function kind(i) { return key_of[i] ~ /^(group|victim) / } # a container that is ended for memory for ever hides no card'

read_kernel() { # LIMIT: the ring of the kernel, into what is kept; in a process of its own, which may outlive the look
    # shellcheck disable=SC2016
    timeout -k 1 "$1" sh -c 'echo $$ >"$1"; exec dmesg' sh "$RUN/kernel/pid" >"$RUN/kernel/ring" 2>"$RUN/kernel/err"
    code=$?
    if [ "$code" = 0 ]; then
        { awk "$STANDING" "$RUN/kernel/lines" "$RUN/kernel/ring" >"$RUN/kernel/new" &&
            mv "$RUN/kernel/new" "$RUN/kernel/lines"; } 2>"$RUN/kernel/err" || code=3
    fi
    { echo "$mine $code"; head -c 500 "$RUN/kernel/err"; } >"$RUN/kernel/new" && mv "$RUN/kernel/new" "$RUN/kernel/state"
    rm -f "$RUN/kernel/ring"
}

reads_kernel() { # true while a dmesg of ours is there, hung or not: it is never joined by a second
    pid='' command=''
    [ ! -r "$RUN/kernel/pid" ] || read -r pid <"$RUN/kernel/pid"
    [ -n "$pid" ] && { read -r command <"/proc/$pid/comm"; } 2>/dev/null && [ "$command" = dmesg ]
}

ask_kernel() { # starts a reading when one is due; only the first of a boot is waited for, and not for long
    kernel_job='' read_at=''
    [ -d "$RUN/kernel" ] || mkdir -p "$RUN/kernel" 2>"$T/kernel.err" || return 0
    [ ! -r "$RUN/kernel/state" ] || read -r read_at _ <"$RUN/kernel/state"
    [ -z "$read_at" ] || [ $((mine - read_at)) -ge "$KERNEL_TICKS" ] || return 0
    ! reads_kernel || return 0
    [ -e "$RUN/kernel/lines" ] || : >"$RUN/kernel/lines"
    # By exec, since a shell keeps copies of what it redirects for a function: whoever asked would wait for their end.
    if [ -z "$read_at" ]; then
        { exec </dev/null >/dev/null 2>&1 9>&-; read_kernel 1; } &
        kernel_job=$!
    else
        { exec </dev/null >/dev/null 2>&1 9>&-; read_kernel 5; } &
    fi
}

kept_kernel() { # the section: lines known stay true when the log cannot be read this time
    if [ -s "$RUN/kernel/state" ]; then
        { read -r _ code; [ "$code" = 0 ] || cat >"$T/kernel.err"; } <"$RUN/kernel/state"
        cat "$RUN/kernel/lines" >"$T/kernel"
    else
        [ -s "$T/kernel.err" ] || echo 'not read yet' >"$T/kernel.err"
        code=1
    fi
    mark kernel "$code"
}

ask_space() { # how full file systems are: blocks and inodes in one question
    journal=/run/log/journal
    [ ! -d /var/log/journal ] || journal=/var/log/journal
    set --
    for place in / /dev/shm /run /tmp "$STATE" "$journal"; do
        [ ! -d "$place" ] || set -- "$@" "$place"
    done
    tool space stat -f -c '%b %f %a %S %c %d %n' "$@"
}

# shellcheck disable=SC2086
note_unusable() { # tells the gates what the daemon found, which judges; `-` is none
    case $unusable in
    '') return 0 ;;
    ' -') rm -f "$RUN/unusable" ;;
    *) printf '%s\n' $unusable >"$T/unusable" && mv "$T/unusable" "$RUN/unusable" ;;
    esac
} 2>/dev/null
