"""What one host's cards, kernel log and file systems showed of their health. Nouns; `Observation` holds them.

Times named `_s` are seconds of the host's boot clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemon.domain.status import Reason

PciAddress = tuple[int, int, int]  # domain, bus, device


@dataclass(frozen=True, slots=True)
class Ailment:
    """One thing that is wrong with a card; `uuid` is "" for what concerns no card that is present.

    `unusable`: nothing is started on that card. Else it is a warning: a person is needed before it becomes worse.
    `detail` holds no figure that moves.
    """

    uuid: str
    reason: Reason
    detail: str
    unusable: bool


@dataclass(frozen=True, slots=True)
class CardHealth:
    """What the driver keeps of one card beside its figures; None is the tool's "no value".

    `recovery` is the driver's own advice ("None", "Reset", "Reboot", "Drain P2P", "Drain and Reset").
    """

    uuid: str
    ecc_uncorrected: int | None = None  # since the driver was loaded
    retired_pending: bool | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery: str | None = None


@dataclass(frozen=True, slots=True)
class CardHealths:
    """The answer to the rarer question, and when it was asked."""

    asked_s: float
    cards: tuple[CardHealth, ...]


@dataclass(frozen=True, slots=True)
class Xid:
    """An error that the driver wrote about one card. `after` is what Xid 154 says is advised from then on."""

    card: PciAddress
    code: int
    at_s: float | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class SwitchError:
    """An SXid: an error of one NVSwitch."""

    switch: str
    code: int
    fatal: bool
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class OomKill:
    """A process that the kernel ended for want of memory. Its pid is of the host's own namespace."""

    pid: int
    comm: str
    cgroup: str | None = None
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class KernelLog:
    """What still stands in the kernel log of this boot: errors from before the last load of the driver are left out,
    and so are those of a card that a person or the driver has called well since. `vouched` are cards a person did."""

    xids: tuple[Xid, ...] = ()
    switches: tuple[SwitchError, ...] = ()
    kills: tuple[OomKill, ...] = ()
    vouched: frozenset[PciAddress] = frozenset()


@dataclass(frozen=True, slots=True)
class Space:
    """One file system by a path on it: used shares as `df` rounds them, None where it counts none."""

    path: str
    used_pct: int | None
    inodes_pct: int | None
    free_mib: int
