"""What stoker-host accepts as a request, and that its text is one whole script."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess

import pytest

from daemon import host
from daemon.probes.report import Answer, parse_answer
from tests.host_scripts.conftest import NONCE, Box, said


def test_script_is_joined_and_every_shell_here_reads_it() -> None:
    text = host.helper_text()
    assert b"@include" not in text
    shells = [shell for shell in ("/bin/sh", shutil.which("dash"), shutil.which("bash")) if shell]
    for shell in shells:
        for script in (text, host.gate_text()):
            assert subprocess.run([shell, "-n"], input=script, capture_output=True, check=False).stderr == b""


def test_version_is_the_one_this_daemon_expects(box: Box) -> None:
    answer = box.ask("version")
    assert (answer.version, said(answer, "version")) == (host.VERSION, [str(host.VERSION)])


@pytest.mark.parametrize(
    "request_text",
    [
        b"",
        b"\n",
        b"nonce\n.\n",
        b"nonce abc\n.\n",
        b"nonce " + b"g" * 32 + b"\n.\n",
        b"unit a.service\n.\n",
        b"\xff\n.\n",
    ],
)
def test_request_without_a_nonce_gets_no_frame(box: Box, request_text: bytes) -> None:
    done = box.raw("version", request_text)
    assert (done.returncode, done.stdout) == (host.EXIT_USAGE, b"")


@pytest.mark.parametrize(
    "lines",
    [
        b"",
        b"unit a.service\n",
        b"strange key\n.\n",
        b"port 0x16\n.\n",
        b"port 010\n.\n",
        b"limit-ms 1;id\n.\n",
        b"port\n.\n",
    ],
)
def test_request_that_is_cut_or_strange_is_refused(box: Box, lines: bytes) -> None:
    done = box.raw("version", b"nonce " + NONCE.encode() + b"\n" + lines)
    answer = parse_answer(done.stdout, NONCE)
    assert isinstance(answer, Answer)
    assert answer.exit_status == host.EXIT_USAGE


def test_unknown_verb_is_refused(box: Box) -> None:
    assert box.ask("rm").exit_status == host.EXIT_USAGE


def test_environment_of_the_caller_changes_nothing(box: Box) -> None:
    box.tool("cat", "#!/bin/sh\nexit 1\n")
    spoiled = {"PATH": "/nowhere", "IFS": "0", "LC_ALL": "de_DE.UTF-8", "CDPATH": "/", "GREP_OPTIONS": "-v"}
    (box.root / "bin" / "cat").unlink()
    done = box.raw("version", f"nonce {NONCE}\n.\n".encode(), env=spoiled)
    assert isinstance(parse_answer(done.stdout, NONCE), Answer)


def test_nothing_is_left_behind(box: Box) -> None:
    box.ask("version")
    box.ask("observe")
    assert sorted(path.name for path in box.path("run").iterdir()) == ["facts", "kernel", "smi"]
    assert list(box.path("run/smi").iterdir()) == []


def test_full_file_system_gives_no_answer_at_all(box: Box) -> None:
    box.tool("cat", "#!/bin/sh\n/bin/cat \"$@\" | head -c 20\necho 'cat: write error: No space left' >&2\nexit 1\n")
    done = box.raw("version", f"nonce {NONCE}\n.\n".encode())
    assert done.stdout == b""
    assert done.returncode != 0


def test_answer_without_its_sum_is_never_printed(box: Box) -> None:
    box.tool("sha256sum", "#!/bin/sh\nexit 1\n")
    done = box.raw("version", f"nonce {NONCE}\n.\n".encode())
    assert (done.stdout, done.returncode) == (b"", 1)


def test_answer_is_followed_by_its_sum(box: Box) -> None:
    said, _, rest = box.raw("observe", f"nonce {NONCE}\n.\n".encode()).stdout.rpartition(b"@")
    assert rest.decode() == f"{NONCE} sum {hashlib.sha256(said).hexdigest()}\n"


def test_verb_goes_on_when_the_connection_is_cut(box: Box) -> None:
    """Nobody reads the answer: the change is made all the same."""
    read, write = os.pipe()
    os.close(read)
    request = f"nonce {NONCE}\nexpected -\nfence s1 1 a\n.\n".encode()
    command = ["/bin/sh", str(box.helper()), "take-fence"]
    subprocess.run(command, input=request, stdout=write, stderr=write, timeout=30, check=False)
    os.close(write)
    assert box.path("state/fence").read_text(encoding="ascii") == "s1 1 a\n"
