"""Hostile sizes: a line of a megabyte, ten thousand rows, numbers without end. Twice as much takes about twice as long.

Compared are two sizes on this machine, by processor time and the best of a few runs, so that no speed is assumed: eight
times the input is eight times the work for a parser that looks at each byte a few times, and 64 times for a quadratic.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from daemon.domain.observation import Unknown
from daemon.probes import nvidia_smi, process, socket, systemd
from daemon.probes.kernel_log import parse_kernel_log
from daemon.probes.report import parse_answer
from daemon.ssh.argv import Finished, Wrap, helper_refusal, refusal
from tests.probes.reference import NONCE, frame, show, uuid

pytestmark = pytest.mark.strays
GROWTH, SLOWER, LEAST_S = 8, 32, 0.002

FACTS = process.Facts(uids={7: 0}, users={}, environ={}, readable=frozenset())
STAT = b"/proc/7/stat\x007 (x) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0\n/proc/7/cgroup\x000::/x\n"


def _process(cmdline: bytes) -> object:
    """One process with these arguments, as grep prints them: each line behind the file's name."""
    lines = b"".join(b"/proc/7/cmdline\0" + line + b"\n" for line in cmdline.split(b"\n"))
    return process.parse_processes(lines + STAT, (7,), frozenset(), FACTS)


def _gpus(text: str) -> object:
    return nvidia_smi.parse_gpus(0, text)


def _row(index: int) -> str:
    return (
        f"{index}, {uuid(index)}, 00000000:{index:X}:00.0, NVIDIA H200, 580.159.04, 143771, 21623, 90, 36, Disabled\n"
    )


def _refused(stderr: bytes) -> object:
    return refusal(Finished(1, b"", stderr), Wrap(True, 129)), helper_refusal(Finished(1, stderr, stderr))


_RECOVERED = "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset) to 0x0 (None)\n"


def _xids(cards: int) -> str:
    return "".join(f"NVRM: Xid (PCI:{at:08x}:3b:00): 79, pid=1, GPU has fallen off the bus.\n" for at in range(cards))


SIZES: dict[str, Callable[[int], object]] = {  # each of a size that takes milliseconds
    "arguments of line breaks": lambda n: _process(b"\n" * (n // 10)),
    "arguments of NULs": lambda n: _process(b"x" + bytes(n)),
    "arguments of other processes": lambda n: _process(b"/proc/8/stat\0\n" * (n // 100)),
    "one long argument": lambda n: _process(b"\xff" * n),
    "cards": lambda n: _gpus("".join(_row(index) for index in range(n // 100))),
    "cards and a warning for each": lambda n: _gpus(
        "".join(f"{_row(index)}WARNING: infoROM is corrupted at gpu 0000:{index:X}:00.0\n" for index in range(n // 200))
    ),
    "a card of commas": lambda n: _gpus("," * n + "\n"),
    "a card of spaces": lambda n: _gpus("0, GPU-0, a, b" + " " * n + ", 1, 2, 3, 4, 5, Disabled\n"),
    "a card of digits": lambda n: _gpus("9" * n + _row(1)),
    "a card of dashes": lambda n: _gpus(f"0, GPU-{'-' * n}!, a, b, c, 1, 2, 3, 4, 5\n"),
    "a card of brackets": lambda n: _gpus("[" * n + "\n" + "]" * n + "\n"),
    "a card with a long token": lambda n: _gpus(f"0, {uuid(0)}, a, b, c, [{'x ' * n}], 2, 3, 4, Disabled\n"),
    "empty lines": lambda n: _gpus("\n \r\n" * n),
    "a sentence after many lines": lambda n: _gpus("Unable to determine\n" * (n // 10) + "No devices were found\n"),
    "apps": lambda n: nvidia_smi.parse_apps(0, "".join(f"{uuid(0)}, {pid}, a, b, 3\n" for pid in range(n // 50))),
    "an app with a long name": lambda n: nvidia_smi.parse_apps(0, f"{uuid(0)}, 4, {'a, ' * n}, 3\n"),
    "environments": lambda n: process.parse_environ(b"/proc/7/environ\0A=b\0" * (n // 20)),
    "variables": lambda n: process.parse_environ(
        b"".join(b"/proc/7/environ\0STOKER_%d=b\0" % at for at in range(n // 50))
    ),
    "users": lambda n: process.parse_users(b"".join(b"u%d:x:%d:1:::\n" % (at, at) for at in range(n // 20))),
    "open devices": lambda n: process.parse_nvidia_files(b"".join(b"7 nvidia%d\n" % at for at in range(n // 50))),
    "controllers": lambda n: process.cgroup_path(b"1:" + b"a:" * n + b"\n0::/" + b"b" * n),
    "listeners": lambda n: socket.parse_listeners("1 0100007F 1,2\n" * (n // 50)),
    "owners of one socket": lambda n: socket.parse_listeners(f"1 0100007F {','.join(map(str, range(n // 20)))}\n"),
    "properties": lambda n: systemd.parse_show((show("a.service", 1) + "X=y\n" * (n // 10)).encode(), ["a.service"]),
    "other names": lambda n: systemd.parse_show(
        show("a.service", 1).replace("Names=", "Names=" + "b.service " * (n // 10)).encode(), ["a.service"]
    ),
    "a long time": lambda n: _malformed(systemd.timespan_us, "9" * n + "s"),
    "many times": lambda n: systemd.timespan_us("1h " * (n // 20)),
    "an argument vector": lambda n: systemd.parse_loaded(
        b'= a.service\n{"data":[["a",[%s"z"]]]}\n{"data":[]}\n{"data":""}\n{"data":""}\n' % (b'"y",' * (n // 20))
    ),
    "drop-ins": lambda n: systemd.parse_dropins("a.service /x.conf\n" * (n // 100), {}),
    "sessions": lambda n: systemd.parse_sessions("3 701\n" * (n // 50)),
    "a whole answer": lambda n: parse_answer(frame({"processes": (0, b"@" + NONCE.encode() * (n // 32))}), NONCE),
    "an answer of beginnings": lambda n: (
        parse_answer(b"@" + NONCE.encode() + b" begin ", NONCE)
        or parse_answer((b"@" + NONCE.encode() + b" begi") * (n // 4), NONCE)
    ),
    "a kernel log of other words": lambda n: parse_kernel_log("[ 1.5] usb 1-1: new device\n" * (n // 20)),
    "errors of many cards, and a word of each": lambda n: parse_kernel_log(
        _xids(n // 80) + "".join(f"stoker: GPU 0000:{at:x}:00 is well\n" for at in range(n // 80))
    ),
    "errors of many cards, and no more to do": lambda n: parse_kernel_log(_xids(n // 80) + _RECOVERED * (n // 80)),
    "sudo's long line": lambda n: _refused(b"sudo: " + b"a " * n),
    "many lines of sudo": lambda n: _refused(b"sudo: pass\n" * (n // 10)),
    "many containers": lambda n: _refused(b"container '129' not runnin\n" * (n // 20)),
    "a container with a long number": lambda n: _refused(b"CT " + b"1" * n + b" x"),
    "many configuration files": lambda n: _refused(b"Configuration file 'x" * (n // 10)),
    "many failures of lxc-attach": lambda n: _refused(b"lxc-attach: " + b"Failed to get init pi" * (n // 20)),
}


def _malformed(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(process.Malformed):
        parse(text)


def _best_s(make: Callable[[int], object], size: int) -> float:
    took = []
    for _ in range(5):
        began = time.process_time()
        make(size)
        took.append(time.process_time() - began)
    return min(took)


@pytest.mark.parametrize("name", SIZES)
def test_eight_times_as_much_takes_no_more_than_in_proportion(name: str) -> None:
    make, size = SIZES[name], 2000
    while (small := _best_s(make, size)) < LEAST_S and size < 2**17:
        size *= 2
    assert _best_s(make, GROWTH * size) < SLOWER * max(small, LEAST_S), f"from {size}: {small:.4f} s"


def test_a_megabyte_of_arguments_and_ten_thousand_rows_are_still_read() -> None:
    found = _process(b"a" * 500_000 + b"\n" * 500_000 + b"\0")
    assert isinstance(found, tuple)
    assert len(found[0].argv[0]) == 1_000_000
    gpus, _ = nvidia_smi.parse_gpus(0, "".join(map(_row, range(10_000))))
    assert not isinstance(gpus, Unknown)
    assert len(gpus) == 10_000
