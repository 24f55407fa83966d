"""The files of a simulated host that anybody looks at: unit files, what Stoker keeps, a person's hold."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

STATE = "/var/lib/stoker"
HELPER = f"{STATE}/stoker-host"
GATE = f"{STATE}/gate"
FENCE = f"{STATE}/fence"
HOLD = "/etc/stoker/hold"
UNITS = "/etc/systemd/system"
UNIT_FOLDERS = (UNITS, "/run/systemd/system", "/usr/lib/systemd/system")
DROPIN_FOLDERS = ("/etc/systemd/system.control", "/run/systemd/system", "/run/systemd/system.control")
NOWHERE = "/dev/null"


class Disk:
    """Regular files, symbolic links, and a number for each path that grows with every write (its mtime)."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.stamps: dict[str, int] = {}
        self._writes = 0
        self.watchers: list[Callable[[str], None]] = []

    def write(self, path: str, content: bytes) -> None:
        self.links.pop(path, None)
        self.files[path] = content
        self._touch(path)

    def link(self, path: str, target: str) -> None:
        self.files.pop(path, None)
        self.links[path] = target
        self._touch(path)

    def remove(self, path: str) -> None:
        self.files.pop(path, None)
        self.links.pop(path, None)
        self._touch(path)

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.links

    def text(self, path: str) -> str | None:
        found = self.files.get(path)
        return None if found is None else found.decode("utf-8", "surrogateescape")

    def digest(self, path: str) -> str:
        """As a change's ground names a file; `-` is none."""
        found = self.files.get(path)
        return "-" if found is None else hashlib.sha256(found).hexdigest()

    def below(self, folder: str, ending: str = "") -> list[str]:
        """Files and links right below a folder, sorted."""
        found = {*self.files, *self.links}
        return sorted(p for p in found if p.rpartition("/")[0] == folder and p.endswith(ending))

    def empty_run(self) -> None:
        """What a boot does: /run is gone."""
        for path in [path for path in (*self.files, *self.links) if path.startswith("/run/")]:
            self.remove(path)

    def _touch(self, path: str) -> None:
        self._writes += 1
        self.stamps[path] = self._writes
