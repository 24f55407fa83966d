"""What a newcomer does on a bare Debian 12: clone, `make test`, `make hosts`. Not as root, with nothing else installed.

The root is built once, by debootstrap, and never changed: a run writes into an overlay on a tmpfs, in mount and process
namespaces of its own, so that nothing stays mounted or running however it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.rootfs import CACHE

pytestmark = [pytest.mark.hosts, pytest.mark.main_job]
REPOSITORY = Path(__file__).parents[2]
PACKAGES = "python3,python3-venv,make,git"
USER, UID = "newcomer", 4242
RECIPE = "1"
PIP_PLACES = ("/etc/pip.conf", "/etc/xdg/pip")
PIP_ENVIRON = re.compile(r"PIP_\w+|\w+_proxy|SSL_CERT_FILE|REQUESTS_CA_BUNDLE", re.IGNORECASE)
PATHS = re.compile(r"(?<![\w/])/[\w.+/-]+")
SETUP = """\
set -eu
mount -t tmpfs -o mode=755 tmpfs {work}
mkdir {work}/upper {work}/work {root}
mount -t overlay bare -o lowerdir={base},upperdir={work}/upper,workdir={work}/work {root}
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
{binds}
exec chroot {root} setpriv --reuid {user} --regid {user} --init-groups --no-new-privs -- \
  env -i HOME=/home/{user} USER={user} PATH=/usr/bin:/bin LANG=C.UTF-8 {environ} sh -euc "$1"
"""
CLONE = """\
cd
git config --global --add safe.directory /repository
git clone --quiet /repository stoker
cd stoker
"""
INSTALL = """\
python3 -m venv ~/installed
~/installed/bin/pip install --quiet .
PYTHONPATH=. ~/installed/bin/python -c 'import daemon.host as h; print(h.helper_text().decode(), end="")' > ~/helper
cd /
rm -rf ~/stoker
~/installed/bin/stoker helper print stoker-host | cmp - ~/helper
STOKER_PORT=0 ~/installed/bin/stoker serve &
sleep 5
kill $!
wait $! && echo ended well
"""
COUNT = '.venv/bin/python -m pytest --collect-only -q -m "not hosts and not bench"'


@pytest.fixture(scope="module")
def base() -> Path:
    """The bare root; built when the cache lacks it. Raises CalledProcessError."""
    key = hashlib.sha256("\0".join((RECIPE, PACKAGES, USER, str(UID))).encode()).hexdigest()[:16]
    CACHE.mkdir(parents=True, exist_ok=True)
    done = CACHE / f"bare-{key}"
    with (CACHE / "bare.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.is_dir():
            part = CACHE / f"{done.name}.part"
            shutil.rmtree(part, ignore_errors=True)
            _build(part)
            part.rename(done)
    return done


def _build(root: Path) -> None:
    run = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root)]
    with root.with_suffix(".log").open("wb") as file:
        subprocess.run(run, check=True, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
    shutil.rmtree(root / "var/cache/apt/archives")
    add = ["chroot", str(root), "useradd", "--create-home", "--shell", "/bin/sh", "--uid", str(UID), USER]
    subprocess.run(add, check=True, capture_output=True)


@pytest.fixture
def script(base: Path, tmp_path: Path) -> str:
    """As `script_in`, with downloads that are kept from run to run."""
    return script_in(base, tmp_path, CACHE / "pip")


def script_in(base: Path, tmp_path: Path, pip_cache: Path) -> str:
    """A shell script that runs its first argument in the bare root, as the newcomer, with `/repository` to clone."""
    repository, work = tmp_path / "stoker.git", tmp_path / "bare"
    # Over the pack protocol: a shallow clone, a work tree or one with alternates gives a whole repository.
    clone = ["git", "clone", "--quiet", "--bare", "--no-local", str(REPOSITORY), str(repository)]
    subprocess.run(clone, check=True, capture_output=True)
    work.mkdir()
    pip_cache.mkdir(exist_ok=True)
    os.chown(pip_cache, UID, UID)
    root = work / "root"
    environ = {name: value for name, value in os.environ.items() if PIP_ENVIRON.fullmatch(name)}
    environ["PIP_CACHE_DIR"] = "/pip-cache"
    binds = [_bind(repository, root / "repository"), _bind(pip_cache, root / "pip-cache", "rw")]
    binds += [_bind(path, root / str(path)[1:]) for path in _pip_needs(environ)]
    return SETUP.format(
        work=shlex.quote(str(work)),
        root=shlex.quote(str(root)),
        base=shlex.quote(str(base)),
        user=USER,
        binds="\n".join(binds),
        environ=" ".join(shlex.quote(f"{name}={value}") for name, value in environ.items()),
    )


def _bind(source: Path, target: Path, how: str = "ro") -> str:
    here, there = shlex.quote(str(source)), shlex.quote(str(target))
    parent = shlex.quote(str(target.parent))
    make = f"mkdir -p {there}" if source.is_dir() else f"mkdir -p {parent}; test -e {there} || touch {there}"
    return f"{make}; mount --bind {here} {there}; mount -o remount,bind,{how} {there}"


def _pip_needs(environ: dict[str, str]) -> Iterator[Path]:
    """This machine's resolver and pip configuration, and what files and folders of this machine that names."""
    places = [Path("/etc/resolv.conf"), *map(Path, PIP_PLACES)]
    texts = list(environ.values())
    for place in places[1:]:
        files = place.rglob("*") if place.is_dir() else [place]
        texts += [file.read_text() for file in files if file.is_file()]
    named = [Path(found) for text in texts for found in PATHS.findall(text)]
    yield from dict.fromkeys(path for path in (*places, *named) if path.exists() and path != Path("/pip-cache"))


def run(script: str, commands: str, timeout_s: float) -> tuple[int, str]:
    """Exit status and all output of the commands in the bare root. All that they started ends with them."""
    argv = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--"]
    with subprocess.Popen(
        [*argv, "sh", "-c", script, "sh", commands],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            out, _ = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
    return process.returncode, out


def test_i_a_clone_on_a_bare_debian_tests_itself_without_root(script: str, tmp_path: Path) -> None:
    status, out = run(script, CLONE + "make test\n" + COUNT, 2400)
    assert status == 0, out[-8000:]
    ended = re.search(r"^(\d+) passed, (\d+) deselected(?:, \d+ warnings?)? in ", out, re.MULTILINE)
    assert ended, out[-3000:]
    collected = re.search(r"^(\d+)/\d+ tests collected \((\d+) deselected\)", out, re.MULTILINE)
    assert collected, out[-3000:]
    assert ended.groups() == collected.groups()
    assert int(ended[1]) > 1000
    assert not any(str(tmp_path) in line for line in Path("/proc/self/mounts").read_text().splitlines())
    assert not list((tmp_path / "bare").iterdir())


def test_i_make_hosts_without_root_says_in_one_line_what_it_needs(script: str) -> None:
    status, out = run(script, CLONE + "make hosts", 120)
    assert status != 0
    (line,) = out.splitlines()
    assert "root" in line
    assert "systemd-container" in line


def test_i_the_installed_command_works_outside_the_repository(script: str) -> None:
    status, out = run(script, CLONE + INSTALL, 600)
    assert status == 0, out
    assert "listening" in out
    assert "ended well" in out


def test_i_what_fails_in_the_bare_root_leaves_nothing_mounted(script: str, tmp_path: Path) -> None:
    status, out = run(script, "touch /home/newcomer/here; sleep 300 & id -un; exit 7", 60)
    assert (status, out.split()) == (7, [USER])
    assert not any(str(tmp_path) in line for line in Path("/proc/self/mounts").read_text().splitlines())
    assert not list((tmp_path / "bare").iterdir())
