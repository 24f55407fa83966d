"""Lines of the kernel log that tell of cards, switches and processes ended for want of memory.

Called by `report`. Takes the forms of dmesg (with and without times, -T, and with callers), of /dev/kmsg, of syslog and
of `journalctl -o short-monotonic`. A message is judged from its own first letter on: what stands in the middle of
another one (the name of a process, of a USB device) is never taken for the driver's word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from daemon.domain.health import KernelLog, OomKill, PciAddress, SwitchError, Xid
from daemon.probes.xid import RECOVERY_CHANGED, UNUSABLE

MAX_LINE = 2000
MAX_EACH = 256
MAX_KILLS = 50
_WELL = re.compile(r"none\b", re.IGNORECASE)
_LINE = re.compile(
    r"(?:<\d{1,3}>|\d{1,10},\d{1,20},(?P<us>\d{1,18}),[^;]{0,40};)?"
    r"(?:(?:[A-Z][a-z]{2} [ \d]\d [\d:]{8}|\d{4}-\d\d-\d\dT\S{8,30}) \S{1,255} kernel: )?"
    r"(?:\[ {0,12}(?P<s>\d{1,12}\.\d{1,9})\] ?|\[[^\]\s]{1,12} [^\]\s]{1,12} [ \d]\d [\d:]{8} \d{4}\] )?"
    r"(?:\[ {0,8}[TC]\d{1,10}\] )?"
    r"(?:\S{1,255} kernel: )?"
    r"(?P<text>.*)"
)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<card>[0-9A-Fa-f:.]{5,20})\): (?P<code>\d{1,4})(?:,|$)(?P<rest>.*)")
_RECOVERY = re.compile(r"changed from \S{1,20} \([^)]{0,60}\) to \S{1,20} \(([^)]{1,60})\)")
_SWITCH = re.compile(
    r"(?P<name>nvidia-nvswitch\d{1,4}): SXid \([^)]{1,40}\): (?P<code>\d{1,6}), (?P<grade>Non-fatal|Fatal)"
)
_LOADED = re.compile(r"NVRM: loading NVIDIA ")
_VOUCHED = re.compile(r"stoker: GPU (?P<card>[0-9A-Fa-f:.]{5,20}) is well\s*$")
_VICTIM = re.compile(
    r"(?:(?:Memory cgroup o|O)ut of memory(?: \([^)]{1,60}\))?: )?"
    r"Kill(?:ed)? process (?P<pid>\d{1,10})(?:, UID \d{1,10},)? \((?P<rest>.*)"
)
_AFTER_COMM = re.compile(r"\) (?:total-vm:|score )")
_OOM = re.compile(r"oom-kill:constraint=")
_OOM_TAIL = re.compile(r",pid=(\d{1,10}),uid=-?\d{1,12}\s*$")


def pci_address(text: str) -> PciAddress | None:
    """`0000:3b:00`, `00000000:3B:00.0`, `3b:00.0`; None for anything else."""
    parts = text.partition(".")[0].split(":")
    try:
        numbers = [int(part, 16) for part in parts if 0 < len(part) <= 8]
    except ValueError:
        return None
    match numbers:
        case [domain, bus, device] if len(parts) == 3:
            return domain, bus, device
        case [bus, device] if len(parts) == 2:
            return 0, bus, device
    return None


def shown(card: PciAddress) -> str:
    """As the kernel log spells it."""
    return f"{card[0]:04x}:{card[1]:02x}:{card[2]:02x}"


def parse_kernel_log(text: str) -> KernelLog:
    """The lines in the order in which they were written; those that tell of nothing are passed over."""
    log = _Standing()
    for raw in text.split("\n"):
        found = _LINE.match(raw[:MAX_LINE].rstrip("\r"))
        if found is not None and found["text"]:
            log.take(found["text"], _seconds(found))
    return log.result()


def _seconds(found: re.Match[str]) -> float | None:
    if found["us"] is not None:
        return int(found["us"]) / 1_000_000
    return None if found["s"] is None else float(found["s"])


class _Standing:
    """What stands after each line."""

    def __init__(self) -> None:
        self._xids: dict[tuple[PciAddress, int], Xid] = {}
        self._codes: dict[PciAddress, set[int]] = {}  # of each card, those that stand
        self._switches: dict[tuple[str, int], SwitchError] = {}
        self._kills: dict[int, OomKill] = {}
        self._vouched: set[PciAddress] = set()

    def take(self, text: str, at_s: float | None) -> None:
        if text.startswith("NVRM: "):
            self._driver(text, at_s)
        elif (found := _SWITCH.match(text)) is not None:
            error = SwitchError(found["name"], int(found["code"]), found["grade"] == "Fatal", at_s)
            self._switches.pop((error.switch, error.code), None)
            self._switches[error.switch, error.code] = error
        elif (found := _VOUCHED.match(text)) is not None:
            self._well(pci_address(found["card"]), by_person=True)
        elif (kill := _kill(text, at_s)) is not None:
            before = self._kills.pop(kill.pid, None)
            self._kills[kill.pid] = kill if before is None else _joined(before, kill)

    def result(self) -> KernelLog:
        return KernelLog(
            tuple(self._xids.values())[-MAX_EACH:],
            tuple(self._switches.values())[-MAX_EACH:],
            tuple(self._kills.values())[-MAX_KILLS:],
            frozenset(self._vouched),
        )

    def _driver(self, text: str, at_s: float | None) -> None:
        if _LOADED.match(text) is not None:
            self._xids.clear()
            self._codes.clear()
            self._switches.clear()
            self._vouched.clear()
            return
        found = _XID.match(text)
        card = pci_address(found["card"]) if found is not None else None
        if found is None or card is None:
            return
        xid = Xid(card, int(found["code"]), at_s)
        if xid.code == RECOVERY_CHANGED:
            to = _RECOVERY.search(found["rest"])
            xid = replace(xid, after=to[1] if to is not None else found["rest"].strip(" ,")[:60])
            if _WELL.match(xid.after or ""):
                self._well(card, by_person=False)
                return
        if xid.code in UNUSABLE or xid.code == RECOVERY_CHANGED:
            self._vouched.discard(card)
        self._xids.pop((card, xid.code), None)
        self._xids[card, xid.code] = xid
        self._codes.setdefault(card, set()).add(xid.code)

    def _well(self, card: PciAddress | None, *, by_person: bool) -> None:
        if card is None:
            return
        for code in self._codes.pop(card, ()):
            del self._xids[card, code]
        if by_person:
            self._vouched.add(card)


def _kill(text: str, at_s: float | None) -> OomKill | None:
    """Either of the two lines that the kernel writes of one victim; the name of a process may hold anything."""
    found = _VICTIM.match(text)
    if found is not None:
        ends = [end.start() for end in _AFTER_COMM.finditer(found["rest"])]
        comm = found["rest"][: ends[-1]] if ends else found["rest"].rpartition(")")[0]
        return OomKill(int(found["pid"]), comm[:64], None, at_s)
    tail = _OOM_TAIL.search(text[-60:]) if _OOM.match(text) is not None else None
    if tail is None:
        return None
    head = text[: text.rindex(tail[0])]
    _, _, rest = head.partition(",task_memcg=")
    cgroup, _, comm = rest.rpartition(",task=")
    return OomKill(int(tail[1]), comm[:64], cgroup or None, at_s)


def _joined(before: OomKill, kill: OomKill) -> OomKill:
    return replace(kill, cgroup=kill.cgroup or before.cgroup, comm=kill.comm or before.comm)


def victims(kills: Sequence[OomKill], unit: str) -> Iterator[OomKill]:
    """Those that were in the unit's cgroup."""
    return (kill for kill in kills if kill.cgroup is not None and unit in kill.cgroup.split("/"))
