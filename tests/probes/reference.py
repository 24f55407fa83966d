"""A look as a busy host gives it, byte for byte: 8 cards, 18 GPU processes, 3 units, 40 candidates."""

from __future__ import annotations

import hashlib
import json

from daemon import host

NONCE = "0123456789abcdef0123456789abcdef"
UNITS = ("stoker-k26.prefill.service", "stoker-k26.decode.service", "sglang-old.service")
OTHERS = ("ssh.service", "session-3.scope", "user@1000.service")
INVOCATION = "aaaabbbbccccddddeeeeffff00001111"


def uuid(index: int) -> str:
    """UUID of the card at that index."""
    return f"GPU-00000000-aaaa-4000-8000-{index:012d}"


def frame(
    sections: dict[str, tuple[int, bytes]],
    verb: str = "observe",
    end: int = 0,
    nonce: str = NONCE,
    version: int = host.VERSION,
) -> bytes:
    """An answer as `stoker-host` prints it."""
    parts = [f"@{nonce} begin {verb} {version}\n".encode()]
    for name, (exit_status, data) in sections.items():
        parts.append(f"@{nonce} section {name} exit={exit_status} ms=10 bytes={len(data)}\n".encode() + data + b"\n")
    parts.append(f"@{nonce} end exit={end}\n".encode())
    return summed(b"".join(parts), nonce)


def summed(said: bytes, nonce: str = NONCE) -> bytes:
    """An answer with its sum behind it."""
    return said + f"@{nonce} sum {hashlib.sha256(said).hexdigest()}\n".encode()


def show(name: str, main_pid: int) -> str:
    """One block of `systemctl show`."""
    values = {
        "Id": name,
        "Names": name,
        "LoadState": "loaded",
        "ActiveState": "active" if main_pid else "inactive",
        "SubState": "running" if main_pid else "dead",
        "Result": "success",
        "UnitFileState": "enabled",
        "FragmentPath": f"/etc/systemd/system/{name}",
        "DropInPaths": "",
        "NeedDaemonReload": "no",
        "MainPID": main_pid,
        "ControlPID": 0,
        "InvocationID": INVOCATION,
        "NRestarts": 0,
        "ExecMainCode": 0,
        "ExecMainStatus": 0,
        "ExecMainStartTimestampMonotonic": 5_000_000,
        "InactiveExitTimestampMonotonic": 4_900_000,
        "ActiveEnterTimestampMonotonic": 5_000_100,
        "InactiveEnterTimestampMonotonic": 0,
        "StateChangeTimestampMonotonic": 5_000_100,
        "ControlGroup": f"/system.slice/{name}",
        "TimeoutStopUSec": "1min 30s",
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def candidates() -> list[tuple[int, int, str, list[str]]]:
    """(pid, ppid, cgroup, argv) of 40 processes: three launchers, 6 GPU workers and 5 helpers each, and ancestors."""
    found = [(1, 0, "/init.scope", ["/sbin/init"]), (700, 1, "/system.slice/ssh.service", ["sshd: /usr/sbin/sshd -D"])]
    found += [(701, 700, "/user.slice/user-1000.slice/session-3.scope", ["-bash"])]
    found += [(702, 1, "/user.slice/user-1000.slice/user@1000.service/init.scope", ["/lib/systemd/systemd", "--user"])]
    flags = [part for n in range(16) for part in (f"--some-option-{n}", f"value-{n}")]
    for number, name in enumerate(UNITS):
        main = 1000 + 100 * number
        group = f"/system.slice/{name}"
        found.append((main, 1, group, ["/opt/venv/bin/python", "-m", "sglang.launch_server", *flags]))
        for worker in range(6):
            argv = ["/opt/venv/bin/python", "-c", f"from multiprocessing.spawn import spawn_main; spawn_main({worker})"]
            found.append((main + 1 + worker, main, group, argv))
        found += [(main + 10 + helper, main, group, [f"sglang::helper_{helper}"]) for helper in range(5)]
    return found


def sections() -> dict[str, tuple[int, bytes]]:
    """Every section of the look, with its exit status."""
    table = candidates()
    files = b"".join(
        f"/proc/{pid}/cmdline\0".encode()
        + b"".join(arg.encode() + b"\0" for arg in argv)
        + f"\n/proc/{pid}/stat\0{pid} (python3) S {ppid} {pid} {pid} 0 -1 4194560 {'7 ' * 12}{500 + pid} {'9 ' * 30}0\n"
        f"/proc/{pid}/cgroup\x000::{group}\n".encode()
        for pid, ppid, group, argv in table
    )
    mains = [1000 + 100 * number for number in range(3)]
    workers = [main + 1 + worker for main in mains for worker in range(6)]
    properties = [
        {"type": "a(sasbttttuii)", "data": [["/opt/venv/bin/python", table[4][3], False, 1, 2, 3, 4, 5, 0, 0]]},
        {"type": "as", "data": ["STOKER_STORE=s1", "CUDA_VISIBLE_DEVICES=0,1,2,3", "A=b=c"]},
        {"type": "s", "data": "serve"},
        {"type": "s", "data": "/srv"},
    ]
    loaded = "".join(f"= {name}\n" + "".join(json.dumps(value) + "\n" for value in properties) for name in UNITS)
    loaded += '= manager\n{"type": "as", "data": ["LANG=C.UTF-8"]}\n'
    text = "[Service]\nExecStart=/opt/venv/bin/python\n" + "# a line of the unit file\n" * 40
    paths = [f"/etc/systemd/system/{name}" for name in UNITS]
    meta = (
        "container=none\nsystemd=252\nuid=0\nclk_tck=100\n"
        "boot_id=257dbc24-b02f-4374-97cd-fc30525b27b0\nmachine_id=3d1219c7c4c5404aaa1f6d2a48adfda4\nhostname=gpu-a\n"
        "pid1=systemd\nmonotonic_us=123456780000\nuptime_s=123456\nmem_available_kib=1000000\n"
    )
    gpus = "".join(
        f"{n}, {uuid(n)}, 00000000:{n + 6:02X}:00.0, NVIDIA H200, 580.159.04, 143771, 21623, 90, 36, Disabled\n"
        for n in range(8)
    )
    rows = "".join(f"{uuid(n % 8)}, {pid}, /opt/venv/bin/python, 21090\n" for n, pid in enumerate(workers))
    pids = " ".join(str(pid) for pid, *_ in table)
    return {
        "meta": (0, meta.encode()),
        "hold": (1, b""),
        "fence": (0, b"s1 7 run-a\n"),
        "gpus": (0, gpus.encode()),
        "apps": (0, rows.encode()),
        "health": (
            0,
            b"asked 12345000\n" + b"".join(f"{uuid(n)}, 0, [N/A], No, No, None\n".encode() for n in range(8)),
        ),
        "kernel": (0, b"[    3.125000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04\n"),
        "space": (0, b"66053021 50859000 15194021 4096 16777216 16200934 /\n"),
        "asked": (0, f" {' '.join(UNITS)}\n {' '.join(OTHERS)}\n".encode()),
        "units": (0, "\n".join(show(name, main) for name, main in zip(UNITS, mains, strict=True)).encode()),
        "loaded": (0, loaded.encode()),
        "others": (0, "\n".join(f"Id={name}\nActiveState=active\nLoadState=loaded\n" for name in OTHERS).encode()),
        "paths": (0, "".join(f"{n} {p} present\n" for n, p in zip(UNITS, paths, strict=True)).encode()),
        "texts": (0, "".join(f"{path}\0{text}\0" for path in paths).encode()),
        "candidates": (0, f" {pids}\n\n".encode()),
        "processes": (0, files),
        "uids": (0, "".join(f"/proc/{pid}/status:Uid:\t1000\t1000\t1000\t1000\n" for pid, *_ in table).encode()),
        "users": (0, b"serve:x:1000:1000::/home/serve:/bin/sh\n"),
        "environ": (
            0,
            "".join(
                f"/proc/{pid}/environ\0STOKER_STORE=s1\0/proc/{pid}/environ\0STOKER_LAUNCH=v1:{pid}\0"
                for pid in (*mains, *workers)
            ).encode()
            + "".join(f"/proc/{pid}/environ\0CUDA_VISIBLE_DEVICES=0,1\0" for pid in mains).encode(),
        ),
        "environ_ok": (0, f" {pids}\n".encode()),
        "nvfds": (0, "".join(f"{pid} nvidiactl\n{pid} nvidia{n % 8}\n" for n, pid in enumerate(workers)).encode()),
        "sockets": (0, b"30001 00000000 1000\n30002 0100007F 1100,1101\n30003 0000000000000000FFFF00000100007F -\n"),
        "sessions": (0, b"3 701\n5 0\n"),
        "exe": (
            0,
            "".join(f"/proc/{pid}/cwd\0/srv\0/proc/{pid}/exe\0/opt/venv/bin/python3.11\0" for pid in mains).encode(),
        ),
    }
