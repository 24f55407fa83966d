"""The file tree that all hosts share: Debian by debootstrap, and a thin layer with the stand-ins on top.

Both are cached by a hash of their recipe and never changed once built; a host writes into an overlay of its own.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE = Path("/var/cache/stoker-tests")
STANDINS = Path(__file__).parents[1] / "standins"
PACKAGES = (
    "systemd,systemd-sysv,systemd-container,dbus,libpam-systemd,openssh-server,procps,iproute2,python3,curl,sudo,login,"
    "util-linux"
)
USERS = ("alice", "serve")
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
    "getty@tty1.service",
    "console-getty.service",
    "systemd-networkd.service",
    "systemd-timesyncd.service",
    "e2scrub_reap.service",
)
RECIPE = "3"


@functools.cache
def layers() -> list[Path]:
    """The lower folders of a host's overlay, topmost first; builds what the cache lacks. Raises CalledProcessError."""
    CACHE.mkdir(parents=True, exist_ok=True)
    base_key = _digest([RECIPE, PACKAGES, *USERS, *MASKED])
    base = _cached(f"base-{base_key}", _build_base)
    files = sorted(path for path in STANDINS.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    texts = [f"{path.relative_to(STANDINS)} {path.stat().st_mode:o}\n{path.read_text()}" for path in files]
    layer = _cached(f"standins-{_digest([RECIPE, base_key, *texts])}", lambda root: _build_layer(root, base))
    return [layer, base]


def ssh_key() -> Path:
    """The private key that every test host lets in, beside its public one; made once. Raises CalledProcessError."""
    CACHE.mkdir(parents=True, exist_ok=True)
    key = CACHE / "id_ed25519"
    with _locked(CACHE / "key.lock"):
        if not key.with_suffix(".pub").exists():
            key.unlink(missing_ok=True)
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "tests", "-f", str(key)]
            subprocess.run(make, check=True, capture_output=True)
    return key


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cached(name: str, build: Callable[[Path], None]) -> Path:
    done = CACHE / name
    if done.is_dir():
        return done
    with _locked(CACHE / "build.lock"):
        if not done.is_dir():
            part = CACHE / f"{name}.part"
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(mode=0o755)
            build(part)
            part.rename(done)
    return done


def _build_base(root: Path) -> None:
    run = [
        "debootstrap",
        "--variant=minbase",
        f"--include={PACKAGES}",
        "bookworm",
        str(root),
    ]
    log = root.with_suffix(".log")
    with log.open("wb") as file:
        subprocess.run(run, check=True, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    for user in USERS:
        add = ["chroot", str(root), "useradd", "--create-home", "--shell", "/bin/bash", user]
        subprocess.run(add, check=True, capture_output=True)
    shutil.rmtree(root / "var/cache/apt/archives")
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    (root / "etc/machine-id").write_text("")
    for unit in MASKED:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")


def _build_layer(root: Path, base: Path) -> None:
    shutil.copytree(STANDINS, root, dirs_exist_ok=True, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    _own_by_root(root)
    python = root / "opt/venv/bin"
    (python / "python3").symlink_to("/usr/bin/python3")
    (python / "python").symlink_to("python3")
    (root / "opt/venv/pyvenv.cfg").write_text(
        "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.2\n"
    )
    wants = root / "etc/systemd/system/sysinit.target.wants"
    wants.mkdir(parents=True)
    (wants / "fake-gpu.service").symlink_to("../fake-gpu.service")
    (root / "models").mkdir()
    folders = ["/mnt/usr/local/lib", "/mnt/opt/venv/lib"]
    compile_all = ["python3", "-m", "compileall", "-q", "-s", "/mnt", "-p", "/", *folders]
    box = ["systemd-nspawn", "-q", "--register=no", "--keep-unit", "--read-only", "--resolv-conf=off", "--timezone=off"]
    bind = [f"--directory={base}", f"--bind={root}:/mnt"]
    subprocess.run([*box, *bind, "--", *compile_all], check=True, capture_output=True, stdin=subprocess.DEVNULL)


def _own_by_root(root: Path) -> None:
    for path in [root, *root.rglob("*")]:
        os.chown(path, 0, 0, follow_symlinks=False)
        if path.is_dir():
            path.chmod(0o755)
