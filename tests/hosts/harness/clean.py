"""Brings a used host back to how it was when built, cheaply, and checks that it is. Called by the pool between tests.

Inside, the `clean` script of the stand-ins ends what was not there before and removes new files; here it is verified.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from harness import rootfs
from harness.host import HostError, TestHost

WATCHED = ("etc", "root", "home", "opt", "usr", "srv", "var/lib", "var/spool", "models")
CHANGING = ("etc/.updated", "var/lib/systemd", "var/lib/private", "etc/.pwd.lock", "etc/resolv.conf")
Stamp = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Baseline:
    """A host as built: its cgroups, and what its overlay holds with size and time of change (ns)."""

    cgroups: tuple[str, ...]
    files: dict[str, Stamp]


def take_baseline(host: TestHost) -> Baseline:
    """Call it once the host is up, before anything is done with it."""
    return Baseline(tuple(host.sh("/usr/local/lib/standin/clean cgroups").stdout.splitlines()), _files(host))


def clean(host: TestHost, baseline: Baseline) -> list[str]:
    """Cleans; returns what is still not as it was (empty: pristine)."""
    try:
        return _clean(host, baseline)
    except (HostError, OSError, TimeoutError) as error:
        return [str(error)]


def _clean(host: TestHost, baseline: Baseline) -> list[str]:
    host.undo()
    host.thaw()
    host.restore_link()
    if not host.container.running:
        host.start()
    new = [path for path in _files(host) if path not in baseline.files]
    order = {"cgroups": baseline.cgroups, "remove": ["/" + path for path in new]}
    done = host.sh("/usr/local/lib/standin/clean", stdin=json.dumps(order).encode(), check=False)
    left = [line for line in (done.stdout + done.stderr).splitlines() if line]
    if done.returncode != 0:
        left.append(f"clean exited {done.returncode}")
    after = _files(host)
    left += [f"{path} is left" for path in sorted(after.keys() - baseline.files.keys())]
    left += [f"{path} is gone" for path in sorted(baseline.files.keys() - after.keys())]
    left += [f"{path} was changed" for path, stamp in baseline.files.items() if after.get(path, stamp) != stamp]
    return left


def _files(host: TestHost) -> dict[str, Stamp]:
    """What the host has of its own; a folder that the shared tree has too is none of that."""
    shared = rootfs.layers()
    upper = host.slot.folder / "upper"
    found: dict[str, Stamp] = {}
    for top in WATCHED:
        for path in (upper / top).rglob("*"):
            name = str(path.relative_to(upper))
            if name.startswith(CHANGING) or path.name == "__pycache__" or path.parent.name == "__pycache__":
                continue
            stat = path.lstat()
            if not _is_folder(path):
                found[name] = (stat.st_size, stat.st_mtime_ns)
            elif not any((layer / name).is_dir() for layer in shared):
                found[name] = (0, 0)
    return found


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
