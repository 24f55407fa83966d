# shellcheck shell=sh
# The look: everything the daemon may want to know, in one exec. Part of stoker-host.

SHOW=Id,Names,LoadState,ActiveState,SubState,Result,UnitFileState,FragmentPath,DropInPaths,NeedDaemonReload,MainPID,ControlPID,InvocationID,NRestarts,ExecMainCode,ExecMainStatus,ExecMainStartTimestampMonotonic,InactiveExitTimestampMonotonic,ActiveEnterTimestampMonotonic,InactiveEnterTimestampMonotonic,StateChangeTimestampMonotonic,ControlGroup,TimeoutStopUSec,Job

wanted_units() { # adds the unit files that carry our name to the units asked for, and lists where each one's text lies
    set +f
    for file in "$UNITS"/stoker-*.service "$UNITS"/*.service.d/50-stoker.conf; do
        case $file in
        */50-stoker.conf) name=${file%.d/50-stoker.conf}; name=${name##*/}; drop=1 ;;
        *) name=${file##*/}; drop='' ;;
        esac
        [ -f "$file" ] && valid_unit "$name" || continue
        case "$units " in *" $name "*) ;; *) units="$units $name" dropins="$dropins${drop:+ $name}" ;; esac
    done
    set -f
    texts=''
    for name in $units; do
        file=$UNITS/$name
        case "$dropins " in *" $name "*) file=$UNITS/$name.d/50-stoker.conf ;; esac
        if [ -f "$file" ] && [ ! -L "$file" ]; then
            echo "$name $file present"
            texts="$texts $file"
        elif [ -e "$file" ] || [ -L "$file" ]; then
            echo "$name $file other"
        else
            echo "$name $file absent"
        fi
    done >"$T/paths"
    mark paths 0
    listed=''
    others_dropins
}

plain() { # FILE: small, and without a NUL, which would end its text: else it is told by what it does
    case $1 in */50-stoker.conf) return 0 ;; esac
    [ -n "$(find "$1" -prune -size -512)" ] && tr -d '\0' <"$1" | cmp -s - "$1"
}

others_dropins() { # lists the drop-ins in the units' own folders, and later those that came since; their texts are read with the units'
    set +f
    for name in $units; do
        for folder in "$UNITS" $DROPINS; do
            [ ! -L "$folder/$name.d" ] || continue # shared with others: told by what it does, never emptied
            for file in "$folder/$name.d"/*.conf; do
                case "$listed " in *" $file "*) continue ;; esac
                [ -f "$file" ] && valid "${file##*/}" A-Za-z0-9:_.@- 200 && plain "$file" || continue
                echo "$name $file"
                listed="$listed $file"
                case "$texts " in *" $file "*) ;; *) texts="$texts $file" ;; esac
            done
        done
    done >>"$T/dropins"
    set -f
    mark dropins 0
}

label_of() { # NAME: sets $label, the name as D-Bus paths hold it; by hand, since processes cost more
    rest=$1 label=''
    case $1 in [0-9]*) label=_3 ;; esac
    while [ -n "$rest" ]; do
        char=${rest%"${rest#?}"}
        rest=${rest#?}
        case $char in
        .) char=_2e ;; -) char=_2d ;; _) char=_5f ;; @) char=_40 ;; :) char=_3a ;;
        esac
        label=$label$char
    done
}

loaded() { # what systemd has loaded, and what every unit inherits, over JSON: `show` loses the quoting
    for name in $units; do
        label_of "$name"
        echo "= $name"
        busctl --json=short get-property org.freedesktop.systemd1 "/org/freedesktop/systemd1/unit/$label" \
            org.freedesktop.systemd1.Service ExecStart Environment User WorkingDirectory || return
    done
    echo "= manager"
    busctl --json=short get-property org.freedesktop.systemd1 /org/freedesktop/systemd1 \
        org.freedesktop.systemd1.Manager Environment
}

facts() { # what changes with an upgrade or a boot alone is kept in /run: two slow tools
    kept=$RUN/facts
    # shellcheck disable=SC3013 # dash, bash and busybox have -nt
    if [ ! "$kept" -nt /usr/bin/systemctl ]; then
        container=$(systemd-detect-virt -c)
        systemd=$([ ! -d "$BOOTED" ] || systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')
        printf 'container=%s\nsystemd=%s\n' "${container:-none}" "$systemd" >"$T/kept"
        [ -z "$systemd" ] || mv "$T/kept" "$kept" || kept=$T/kept
        [ -n "$systemd" ] || kept=$T/kept
    fi
    while read -r fact; do echo "$fact"; done <"$kept"
}

meta() {
    for pair in boot_id:/proc/sys/kernel/random/boot_id machine_id:/etc/machine-id \
        hostname:/proc/sys/kernel/hostname pid1:/proc/1/comm; do
        value=''
        { read -r value <"${pair#*:}"; } 2>/dev/null
        echo "${pair%%:*}=$value"
    done
    # The script's own start ticks are the kernel's boot clock: /proc/uptime may be a container's own.
    ticks_of $$
    echo "monotonic_us=${ticks}0000"
    echo "uptime_s=$((ticks / 100))"
    while read -r word value _; do
        [ "$word" != MemAvailable: ] || { echo "mem_available_kib=$value"; break; }
    done </proc/meminfo
    while read -r word value _; do
        [ "$word" != Uid: ] || { echo "uid=$value"; break; }
    done </proc/self/status
}

one_file() { # NAME FILE: a small file as a section; exit 1 when there is none, 2 when it cannot be read
    if [ ! -e "$2" ] && [ ! -L "$2" ]; then mark "$1" 1; return; fi
    if head -c 4096 "$2" >"$T/$1" 2>/dev/null; then mark "$1" 0; else mark "$1" 2; fi
}

# The two scans take the processes as /proc/PID: the shell would look each longer name up before the tool does.

scan_fds() { # NAME PROCESS…: every open file, PATH TARGET NUL; of them sockets and devices of the driver as lines in NAME.flat
    half=$1
    shift
    # -lname would read most links twice.
    # shellcheck disable=SC2046
    quick "$half" find $(printf '%s/fd ' "$@") -maxdepth 1 -type l -printf '%h %l\0'
    { tr '\n\0' '\001\n' <"$T/$half" || mark "$half" 3; } | grep -a -- "^[^ ]* \(socket:\[\|${DEVICES%"*"}\)" >"$T/$half.flat"
    [ $? -le 1 ] || mark "$half" 3
}

scan_half() { # NAME DIGITS: starts the same of the processes whose numbers end in one of these; adds to $table
    lowest=''
    for digit in 1 2 3 4 5 6 7 8 9; do
        case $2 in *$digit*) [ ! -d "/proc/$digit" ] || lowest="$lowest /proc/$digit" ;; esac
    done
    set +f
    # shellcheck disable=SC2086
    set -- "$1" $lowest /proc/[0-9]*[$2] # each pattern reads the whole of /proc
    set -f
    scan_fds "$@" &
    jobs="$jobs $!"
    shift
    table="$table $*"
}

scan_table() { # PROCESS…: the stat of every process, as lines PID STATE PPID PGRP
    # shellcheck disable=SC2046
    quick all grep -azsHZ '' $(printf '%s/stat ' "$@")
    # shellcheck disable=SC2016
    { tr '\n\0' '\001\n' <"$T/all" || mark all 3; } | awk -v dead="$T/dead" '
        FNR % 2 { split($0, a, "/"); pid = a[3]; next }
        { sub(/^.*\) /, ""); split($0, a, " "); print pid, a[1], a[2], a[3]; if (a[1] == "Z") print pid > dead }
        ' >"$T/all.flat" || mark all 3
    # Zombies are in no cgroup.procs.
    set --
    [ ! -s "$T/dead" ] || while read -r pid; do set -- "$@" "/proc/$pid"; done <"$T/dead"
    [ $# = 0 ] || groups_of zombies "$@"
}

# Who is in a managed cgroup is asked of the cgroups: the kernel makes the text of each /proc/PID/cgroup anew, with a
# line for every v1 hierarchy. Where none is mounted, or one answers oddly, every process is asked.
scan_members() { # PROCESS…: pids, one a line
    roots='' odd=1
    for root in $CGROUPS; do
        [ ! -e "$root/cgroup.procs" ] || roots="$roots $root"
    done
    if [ -n "$roots" ] && [ -n "$units" ]; then
        # shellcheck disable=SC2046,SC2086
        quick members find $roots -name cgroup.procs \( $(printf -- '-path */%s/* -o ' $units) -false \) -exec cat {} +
        odd=0 # but for a cgroup that went away meanwhile
        [ ! -s "$T/members.err" ] || odd=$(grep -cvE 'No such (file or directory|device)$' "$T/members.err")
    elif [ -z "$units" ]; then
        odd=0
    fi
    [ "$odd" = 0 ] || groups_of everyone "$@"
}

groups_of() { # NAME PROCESS…: lines /proc/PID/cgroup:LINE; no name of a cgroup holds a newline
    group_name=$1
    shift
    # shellcheck disable=SC2046
    quick "$group_name" grep -sH '' $(printf '%s/cgroup ' "$@")
}

scan_sessions() {
    set +f
    set -- "$SESSIONS"/*
    for file in "$@"; do
        shift
        case $file in *.ref) continue ;; esac # a FIFO: reading it would wait for ever
        [ ! -f "$file" ] || set -- "$@" "$file"
    done
    set -f
    [ $# = 0 ] || quick leaders grep -sH '^LEADER=[0-9]' "$@"
}

# shellcheck disable=SC2046,SC2086
processes() { # in two halves, for two cores
    owners &
    owners_job=$!
    files='' environ=''
    for p in $pids; do
        files="$files /proc/$p/cmdline /proc/$p/stat /proc/$p/cgroup" # what may be empty first, so that a cut shows
        environ="$environ /proc/$p/environ"
    done
    tool processes grep -asHZ '' $files
    [ "$code" -le 2 ] && code=$whole_code
    [ "$whole_code" = 0 ] || cat "$T/bad" >"$T/processes"
    mark processes "$code"
    tool environ grep -azsHZ '^STOKER_' $environ
    spoiled=$code
    if [ -n "$mains" ] && [ -n "$names" ]; then
        tool environ2 grep -azsHZ -E "^(${names#|})" $(printf '/proc/%s/environ ' $mains)
        [ "$code" -le 2 ] || spoiled=$code
        cat "$T/environ2" >>"$T/environ"
    fi
    [ "$spoiled" -gt 2 ] && mark environ "$spoiled" || mark environ 0
    wait "$owners_job"
}

# shellcheck disable=SC2046,SC2086
owners() { # whose they are, and what the main processes run and where
    quick uids grep -sH '^Uid:' $(printf '/proc/%s/status ' $pids)
    [ "$code" -gt 2 ] || mark uids 0
    users
    code=0
    [ -z "$mains" ] || quick exe find $(printf '/proc/%s/cwd /proc/%s/exe ' $(for p in $mains; do echo "$p $p"; done)) -maxdepth 0 -printf '%p\0%l\0'
    [ "$code" -gt 1 ] && mark exe "$code" || mark exe 0
}

candidates() { # whose environment can be read, and who is gone: asked after all else was read of them
    readable='' gone=''
    for p in $pids; do
        if true 2>/dev/null <"/proc/$p/environ"; then readable="$readable $p"; fi
        [ -d "/proc/$p" ] || gone="$gone $p"
    done
    printf '%s\n' "$readable" >"$T/environ_ok"
    printf '%s\n%s\n' "$pids" "$gone" >"$T/candidates"
    mark environ_ok 0
    mark candidates "$whole_code"
    mark nvfds "$whole_code"
    mark sockets "$whole_code"
}

shorten() { # sets $size: a thousand long command lines of others hide nobody; those of main processes stay whole
    # shellcheck disable=SC2086
    apart=$(printf '%s\\|' $mains)0
    sed "\\#^/proc/\\($apart\\)/#!s/^\\(.\\{4096\\}\\).*/\\1/" "$T/processes" >"$T/shortened" || return
    data=$T/shortened size=$(wc -c <"$T/shortened")
}

users() { # passwd entries of the uids seen; a directory service may be slow, so it is bounded as well
    uids=' '
    while read -r _ uid _; do
        case $uids in *" $uid "*) ;; *) uids="$uids$uid " ;; esac
    done <"$T/uids"
    [ "$uids" != ' ' ] || { mark users 0; return; }
    # shellcheck disable=SC2086
    tool users getent passwd $uids
    [ "$code" != 127 ] || quick users grep '' /etc/passwd # ends its last line, which the file may not
    [ "$code" != 2 ] || mark users 0 # one of the uids has no name
}

ask_systemd() { # adds to $jobs
    systemd_code=0
    [ -d "$BOOTED" ] || systemd_code=78
    if [ "$systemd_code" = 0 ] && [ -n "$units" ]; then
        # shellcheck disable=SC2086
        tool units systemctl show --no-pager -p "$SHOW" -- $units &
        jobs="$jobs $!"
        { loaded >"$T/loaded" 2>"$T/loaded.err"; mark loaded $?; } &
        jobs="$jobs $!"
    else
        mark units $systemd_code
        mark loaded $systemd_code
    fi
}

read_texts() {
    code=0
    # shellcheck disable=SC2086
    [ -z "$texts" ] || quick texts grep -azHZ '' $texts
    [ "$code" -gt 1 ] && mark texts "$code" || mark texts 0
}

add_texts() { # FILE…: since those that were read before may be gone
    read -r before _ <"$T/texts.rc"
    quick late grep -azHZ '' "$@"
    cat "$T/late" >>"$T/texts"
    [ "$code" -gt 1 ] || code=$before
    mark texts "$code"
}

read_files() { # texts of units, sockets, sessions, and the small files
    read_texts
    # The kernel goes through its table of connections for each of the two files; of ss it is asked for what listens alone.
    # shellcheck disable=SC2046
    ask_ss || quick net cat /proc/net/tcp $([ ! -e /proc/net/tcp6 ] || echo /proc/net/tcp6)
    scan_sessions
    [ -e "$T/leaders" ] || : >"$T/leaders"
    one_file hold "$HOLD"
    one_file fence "$STATE/fence"
}

observe() {
    fixed "$limit_ms"
    ticks_of $$
    mine=$ticks
    now
    begun_look=$now
    note_unusable
    ask_driver
    ask_kernel
    # The scan of open files is the longest part: two halves, for two cores.
    jobs='' table=''
    scan_half odd 13579
    scan_half even 02468
    # shellcheck disable=SC2086
    set -- $table
    scan_table "$@" &
    jobs="$jobs $!"
    facts >"$T/meta" 2>/dev/null &
    jobs="$jobs $!"
    ask_space &
    jobs="$jobs $!"
    wanted_units
    scan_members "$@" &
    jobs="$jobs $!"
    ask_systemd
    read_files
    # shellcheck disable=SC2086
    wait $jobs ${gpus_job:-} ${apps_job:-} ${health_job:-} $kernel_job
    # A drop-in that came or went meanwhile may be in what is loaded: it must not look like one that nobody could list.
    read=$texts
    others_dropins
    # shellcheck disable=SC2086
    [ "$texts" = "$read" ] || add_texts ${texts#"$read"}
    kept_health
    kept_kernel
    [ -e "$T/apps" ] || : >"$T/apps"
    [ -e "$T/units" ] || : >"$T/units"
    [ -e "$T/members" ] || : >"$T/members"
    for name in everyone zombies; do [ -e "$T/$name.rc" ] || { : >"$T/$name"; mark "$name" 0; }; done
    choose
    [ "$left" = 0 ] || leftovers
    ask_others &
    others_job=$!
    processes
    wait "$others_job"
    candidates
    mark sessions "$systemd_code"
    meta >>"$T/meta" 2>/dev/null
    mark meta $?
    # shellcheck disable=SC2046
    answer 0 meta hold fence gpus apps health kernel space asked units loaded others paths dropins texts candidates processes uids users environ environ_ok nvfds sockets sessions exe $([ "$left" = 0 ] || echo shm)
}
