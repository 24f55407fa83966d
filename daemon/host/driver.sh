# shellcheck shell=sh
# Questions to the driver: two at once, bounded, and never a second one beside a hung one. Part of stoker-host.

find_smi() {
    smi=''
    for place in $SMI_PLACES; do
        [ ! -x "$place" ] || { smi=$place; return 0; }
    done
    return 1
}

hung_smi() { # true while an nvidia-smi of ours hangs beyond its limit: a second one would hang with it
    hung='' spent=''
    set +f
    for note in "$RUN"/smi/*; do
        pid=${note##*/}
        [ "$pid" != '*' ] || continue
        noted=''
        read -r noted <"$note"
        if ticks_of "$pid" && [ "$ticks" = "$noted" ] && [ "$letter" != Z ]; then
            [ $((mine - noted)) -le $((limit_ms / 10 + 300)) ] || hung=$pid
        else
            spent="$spent $note"
        fi
    done
    set -f
    [ -n "$hung" ]
}

ask_smi() { # NAME QUERY: one question to the driver; notes its pid, so that a hung one is known later
    # shellcheck disable=SC2016
    tool "$1" sh -c 'read -r _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ t _ </proc/$$/stat
        echo $$ >"$1"; [ ! -d "$2" ] || echo "$t" >"$2/$$"; shift 2; exec "$@" 2>&1' \
        sh "$T/$1.pid" "$RUN/smi" "$smi" "$2" --format=csv,noheader,nounits
    # timeout's KILL reaches its own group and so itself: 137
    case $code in 124 | 137) echo "124 $(((now - begun) * 10))" >"$T/$1.rc" ;; esac
}

ask_driver() { # sets $missing, the status of a question that was never asked
    missing=1
    if ! find_smi; then
        missing=127
        mark gpus 127
        mark apps 127
    elif hung_smi; then
        echo "nvidia-smi (pid $hung) hangs since an earlier look" | tee "$T/gpus" >"$T/apps"
        mark gpus 124
        mark apps 124
    else
        ask_smi gpus --query-gpu=index,uuid,pci.bus_id,name,driver_version,memory.total,memory.used,utilization.gpu,temperature.gpu,mig.mode.current </dev/null >/dev/null 2>&1 &
        gpus_job=$!
        ask_smi apps --query-compute-apps=gpu_uuid,pid,process_name,used_gpu_memory </dev/null >/dev/null 2>&1 &
        apps_job=$!
        ask_health </dev/null >/dev/null 2>&1 &
        health_job=$!
    fi
}
