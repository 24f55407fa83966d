"""Makes one host: slot, overlay, keys, network, boot. Called by the pool; what it makes, the slot takes down."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

from harness import net, rootfs, slots
from harness.host import Shape, TestHost
from harness.nspawn import Container
from harness.rootfs import USERS, ssh_key

__all__ = ["build", "ssh_key"]

IDLE_UNIT = """[Unit]
Description=Idle processes
[Service]
Type=notify
NotifyAccess=main
ExecStart=/usr/bin/python3 -S /usr/local/lib/standin/idle {count}
TasksMax=infinity
KillMode=mixed
[Install]
WantedBy=multi-user.target
"""


def build(name: str, shape: Shape) -> TestHost:
    """A host that is booting; `wait_ready` tells when it is up. Frees its slot again when this fails."""
    slot = slots.claim()
    try:
        machine_id = uuid.uuid4().hex
        _mount(slot)
        host_key = _keys(slot)
        _files(slot.root, name, machine_id, shape)
        net.connect(slot)
        for number in shape.containers:
            _nested(slot, number, shape)
        container = Container(slot, name, machine_id, hybrid=shape.hybrid, nesting=bool(shape.containers))
        container.start()
        return TestHost(name, shape, slot, container, host_key)
    except BaseException:
        slot.free()
        raise


def _mount(slot: slots.Slot) -> None:
    slot.root.mkdir(mode=0o755)
    _overlay(slot.link, slot.folder, slot.root)


def _overlay(name: str, folder: Path, root: Path) -> None:
    for part in ("upper", "work"):
        (folder / part).mkdir(mode=0o755, parents=True)
    lower = ":".join(str(path) for path in rootfs.layers())
    options = f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work,volatile"
    _run("mount", "-t", "overlay", name, "-o", options, str(root))


def _nested(slot: slots.Slot, number: int, shape: Shape) -> None:
    """A container of the host, as Proxmox VE has them: a root of its own, started by the host at boot."""
    root = slot.root / f"var/lib/lxc/{number}/rootfs"
    root.mkdir(parents=True)
    _overlay(f"{slot.link}-{number}", slot.folder / f"ct{number}", root)
    _files(root, f"ct{number}", uuid.uuid4().hex, Shape(gpus=shape.gpus))
    wants = slot.root / "etc/systemd/system/multi-user.target.wants"
    (wants / f"pct@{number}.service").symlink_to("../pct@.service")


def _keys(slot: slots.Slot) -> str:
    ssh = slot.root / "etc/ssh"
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "host", "-f", str(ssh / "ssh_host_ed25519_key"))
    public = ssh_key().with_suffix(".pub").read_text()
    for user, home in [("root", "root"), *((user, f"home/{user}") for user in USERS)]:
        folder = slot.root / home / ".ssh"
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / "authorized_keys").write_text(public)
        _run("chroot", str(slot.root), "chown", "-R", f"{user}:", f"/{home}/.ssh")
    line = " ".join((ssh / "ssh_host_ed25519_key.pub").read_text().split()[:2])
    (slot.folder / "known_hosts").write_text(f"{slot.address} {line}\n")
    return line


def _files(root: Path, name: str, machine_id: str, shape: Shape) -> None:
    (root / "etc/hostname").write_text(name + "\n")
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost {name}\n::1 localhost\n")
    (root / "etc/machine-id").write_text(machine_id + "\n")
    (root / "etc/fake-gpu").mkdir()
    (root / "etc/fake-gpu/count").write_text(f"{shape.gpus}\n")
    (root / "etc/standin").mkdir()
    if shape.idle:
        unit = root / "etc/systemd/system/idle-processes.service"
        unit.write_text(IDLE_UNIT.format(count=shape.idle))
        wants = root / "etc/systemd/system/multi-user.target.wants"
        (wants / unit.name).symlink_to(f"../{unit.name}")


def _run(*argv: str) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stdout}{done.stderr}")
