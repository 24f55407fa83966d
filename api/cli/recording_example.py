"""A recording written by hand, which says by itself what may stand in one. Printed by `stoker record --example`."""

from __future__ import annotations

EXAMPLE = """\
# A recording written by hand, JSON or YAML; more documents in the file may be manifests. stoker replay FILE --looks 2.
#
# A section is a tool's output as text, or an object with output (or base64), exitStatus, command, tookMs and complete
# (false: its end mark never came). Its name is the helper's; stoker record shows all. meta, processes, units, sockets
# and sessions may be written as here instead. A section that is left out is not known; stoker record --schema has
# every key.
recording: stoker/v1
host: gpu-a
sections:
  meta: {bootId: 0f3c2c1e-7a55-4b5e-9f0e-3d1c5f0a9b11, container: none, systemd: 252, uptimeS: 864000} # or left out
  gpus: | # nvidia-smi --query-gpu=… --format=csv; the header says which columns, as many as you have
    index, uuid, name, memory.total [MiB], memory.used [MiB]
    0, GPU-00000000-aaaa-4000-8000-000000000000, NVIDIA H200, 143771 MiB, 21623 MiB
  apps: | # nvidia-smi --query-compute-apps=… --format=csv
    gpu_uuid, pid, process_name, used_gpu_memory [MiB]
    GPU-00000000-aaaa-4000-8000-000000000000, 22240, VLLM::Worker_TP0, 21090 MiB
  processes: # each needs pid, user or uid, and ageS (ps -o etimes) or startTicks
    - {pid: 1, ppid: 0, user: root, ageS: 864000, command: /usr/lib/systemd/systemd, cgroup: /init.scope, env: {}}
    - pid: 22240
      ppid: 1
      pgrp: 22103
      user: root
      ageS: 895
      state: S # Z defunct, D uninterruptible, T stopped
      command: VLLM::Worker_TP0 # or argv, a list of words
      cgroup: / # left out: it could not be read, so that whose it is stays unknown
      env: {STOKER_STORE: s-1, STOKER_SPEC: llama} # our marks; {}: it has none; left out: it could not be read
      ports: [] # on which it listens; none when left out
      # nvidia: true, false or minor numbers of its open /dev/nvidia* files; left out: open when apps names it
      # serves: true or false, what a probe of its ports found
  units: # all that are declared, and all that a process is in; one that is left out is not known
    - {name: init.scope, active: active}
    - {name: stoker-llama.server.service, active: inactive, asDeclared: true, ageS: 60}
    # asDeclared: file and launch are the spec's. More: sub, load, result, enabled, mainPid, restarts, execMainStatus,
    # invocation, cgroup, stopTimeout, file (its text), argv, env, user
  sessions: [] # {id: "3", leader: 4711}, or leader: 0 when it is gone
knows: # by the daemon, beside the look
  store: s-1 # its store's uid
  signalled: [] # before the look: {pid: 22240, termAgoS: 30, killAgoS: 10}
  held: [] # what an instance of ours had since boot: GPU UUIDs, gpu:0, port:30000
---
apiVersion: stoker/v1
kind: Host
metadata: {name: gpu-a}
spec: {ssh: {address: 192.0.2.10}, mode: enforce}
---
apiVersion: stoker/v1
kind: ServingSpec
metadata: {name: llama} # without a uid, its name stands for it in STOKER_SPEC
spec:
  engine: {name: vllm, python: /opt/venv/bin/python}
  model: {path: /models/llama}
  placement: {host: gpu-a, gpus: [0]}
  port: 30000
"""
