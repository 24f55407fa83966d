"""The unit and the sudoers line are what systemd and sudo of Debian 12 take, in the tree that all test hosts share."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.hosts]
MANIFESTS = Path(__file__).parents[1] / "manifests/systemd"


def in_base(command: str, text: str) -> subprocess.CompletedProcess[str]:
    from harness.rootfs import layers

    box = ["systemd-nspawn", "-q", "--pipe", "--register=no", "--keep-unit", "--read-only", "--resolv-conf=off"]
    argv = [
        *box,
        "--timezone=off",
        "--tmpfs=/tmp",
        f"--directory={layers()[-1]}",
        "--",
        "sh",
        "-c",
        f"{{ {command}; }} 2>&1",
    ]
    return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=60, check=False)


def test_systemd_takes_the_unit_without_a_word() -> None:
    text = (MANIFESTS / "stoker.service").read_text()
    assert "/opt/stoker/bin/stoker serve" in text
    unit = text.replace("/opt/stoker/bin/stoker", "/bin/true")
    done = in_base("cat > /tmp/stoker.service && systemd-analyze verify --man=no /tmp/stoker.service", unit)
    assert (done.returncode, done.stdout) == (0, "")


def test_sudo_takes_the_line() -> None:
    check = "cat > /tmp/stoker && chmod 440 /tmp/stoker && visudo -c -f /tmp/stoker"
    done = in_base(check, (MANIFESTS / "sudoers.stoker").read_text())
    assert (done.returncode, done.stdout) == (0, "/tmp/stoker: parsed OK\n")
    broken = in_base(check, "stoker ALL=(root NOPASSWD: /x\n")
    assert broken.returncode != 0
