"""A place where copies of the host scripts run: constants point into a temporary folder, tools are stand-ins."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from daemon import host
from daemon.probes.report import Answer, parse_answer

NONCE = "0123456789abcdef0123456789abcdef"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()

# Answers from files: FOLDER/UNIT/PROPERTY for `--value`, else FOLDER/show; every call is noted.
SYSTEMCTL = """#!/bin/sh
echo "$*" >>{folder}/calls
case " $* " in
*" --value "*) for unit; do :; done; prop=; while [ $# -gt 0 ]; do [ "$1" != -p ] || prop=$2; shift; done
    cat "{folder}/$unit/$prop" ;;
*" show "*) cat {folder}/show ;;
*" --version "*) echo "systemd 252 (252.1)" ;;
*) [ ! -e {folder}/fails ] || {{ cat {folder}/fails; exit 5; }} ;;
esac
"""


@dataclass(frozen=True)
class Box:
    """The folder and what runs in it."""

    root: Path

    def path(self, name: str) -> Path:
        """A file of this box."""
        return self.root / name

    def tool(self, name: str, text: str) -> None:
        """A stand-in for a tool, found before the real one."""
        file = self.root / "bin" / name
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)

    def unit(self, name: str, **properties: str) -> None:
        """What the stand-in systemctl says of a unit."""
        folder = self.root / "systemctl" / name
        folder.mkdir(exist_ok=True)
        for key, value in properties.items():
            (folder / key).write_text(value + "\n", encoding="utf-8")

    def calls(self) -> list[str]:
        """What systemctl was asked to do, looks left out."""
        file = self.root / "systemctl" / "calls"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [line for line in lines if not line.startswith("show")]

    def script(self, text: bytes, **constants: str) -> Path:
        """A copy of a host script with its constants changed."""
        changed = text.decode()
        for key, value in constants.items():
            changed, count = re.subn(rf"(?m)^{key}=.*$", lambda _, k=key, v=value: f"{k}={v}", changed)
            assert count == 1, key
        file = self.root / "script"
        file.write_text(changed, encoding="utf-8")
        return file

    def constants(self) -> dict[str, str]:
        """Those that both scripts have."""
        return {
            "STATE": str(self.root / "state"),
            "RUN": str(self.root / "run"),
            "DEVICES": f"'{self.root}/dev/nvidia*'",
            "PATH": f"{self.root}/bin:/usr/bin:/usr/sbin:/bin:/sbin",
            "SMI_PLACES": f"'{self.root}/nowhere {self.root}/bin/nvidia-smi'",
        }

    def helper(self) -> Path:
        """stoker-host of this box."""
        return self.script(
            host.helper_text(),
            **self.constants(),
            HOLD=str(self.root / "hold"),
            UNITS=str(self.root / "units"),
            SESSIONS=str(self.root / "sessions"),
            BOOTED=str(self.root / "booted"),
            DROPINS=str(self.root / "units.run"),
            CGROUPS=f"'{self.root}/cgroup {self.root}/cgroup/systemd'",
        )

    def raw(self, verb: str, request: bytes, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
        """One call with the request as it is."""
        return subprocess.run(
            ["/bin/sh", str(self.helper()), verb],
            input=request,
            capture_output=True,
            timeout=60,
            check=False,
            env={**os.environ, **(env or {})},
        )

    def ask(self, verb: str, *lines: str, body: bytes = b"") -> Answer:
        """One verb; the frame must be whole and its status the exit status."""
        done = self.raw(verb, "".join(f"{line}\n" for line in (f"nonce {NONCE}", *lines, ".")).encode() + body)
        answer = parse_answer(done.stdout, NONCE)
        assert isinstance(answer, Answer), (answer, done)
        assert answer.exit_status == done.returncode
        assert done.stderr == b""
        return answer

    def change(self, verb: str, *lines: str, body: bytes = b"") -> Answer:
        """A changing verb with the right fence and boot."""
        return self.ask(verb, "fence s1 3 run-a", f"boot {BOOT_ID}", *lines, body=body)

    def fence(self, text: str = "s1 3 run-a") -> None:
        """The fence that stands on the host."""
        (self.root / "state" / "fence").write_text(text + "\n", encoding="utf-8")


def said(answer: Answer, section: str) -> Sequence[str]:
    """Lines of a section."""
    return answer.sections[section].text.splitlines()


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """A host with systemd, as far as the scripts see, and no NVIDIA driver."""
    for name in ("bin", "state", "run", "units", "sessions", "booted", "systemctl", "dev"):
        (tmp_path / name).mkdir()
    made = Box(tmp_path)
    made.tool("systemctl", SYSTEMCTL.format(folder=tmp_path / "systemctl"))
    made.tool("busctl", "#!/bin/sh\nexit 1\n")
    (tmp_path / "systemctl" / "show").write_text("", encoding="utf-8")
    return made
