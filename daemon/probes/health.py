"""From what nvidia-smi, its rarer question and the kernel log say to what is wrong with each card.

Called by `report`. What could not be read adds nothing and clears nothing: a card is as well as the rest says it is.
The driver's own standing advice (`gpu_recovery_action`, NVIDIA drivers from 555 on; seen on 580.159.04) outranks events
and counters: asked after them and "None", they are no reason to keep from the card.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from daemon.domain.health import Ailment, CardHealth, CardHealths, KernelLog, PciAddress, Xid
from daemon.domain.observation import Gpu, Unknown
from daemon.domain.status import Reason
from daemon.probes import xid as catalogue
from daemon.probes.kernel_log import pci_address, shown
from daemon.probes.nvidia_smi import failure, number

_ASKED = re.compile(r"asked (\d{1,15})")
_FLAGS = {"Yes": True, "No": False}
_PARTS = (6, 5, 3)  # cells of a row, by what the driver knows: all, no recovery action, no row remapping either
_GRACE_S = 1.0  # the two clocks are one, but read apart
_WORDS = re.compile(r"[A-Za-z][A-Za-z0-9 /-]{0,40}")
_HINT = "reset it or reboot; once it is well, as root: echo 'stoker: GPU {} is well' >/dev/kmsg"


def parse_health(exit_status: int, text: str) -> CardHealths | Unknown:
    """`asked TICKS` and the rows of the cards, each whole."""
    broken = failure(exit_status, text.partition("\n")[2])
    if broken is not None:
        return broken
    try:
        return _healths(text)
    except ValueError as error:
        return Unknown(Reason.UNPARSABLE, f"health: {error}"[:500])


def _healths(text: str) -> CardHealths:
    head, *rows = [line for line in (raw.strip() for raw in text.split("\n")) if line]
    asked = _ASKED.fullmatch(head)
    if asked is None:
        raise ValueError("when it was asked is missing")
    cards = tuple(_card(row) for row in rows if not row.startswith("WARNING:"))
    return CardHealths(int(asked[1]) / 100, cards)


def _card(row: str) -> CardHealth:
    cells = [cell.strip() for cell in row.split(",")]
    if len(cells) not in _PARTS or not cells[0].startswith("GPU-"):
        raise ValueError(f"no row of a card: {row[:100]}")
    uuid, ecc, retired, *more = cells
    pending, failed, recovery = (*more, "", "", "")[:3]
    word = recovery if _WORDS.fullmatch(recovery) and recovery != "N/A" else None
    return CardHealth(uuid, number(ecc), _FLAGS.get(retired), _FLAGS.get(pending), _FLAGS.get(failed), word)


def ailments(gpus: Sequence[Gpu] | Unknown, health: CardHealths | Unknown, log: KernelLog) -> tuple[Ailment, ...]:
    """What is wrong, worst first for each card. While the cards are not known, no line is held against any."""
    known = health if isinstance(health, CardHealths) else CardHealths(0.0, ())
    rows = {card.uuid: card for card in known.cards}
    cards = () if isinstance(gpus, Unknown) else gpus
    found: list[Ailment] = []
    for gpu in cards:
        address = pci_address(gpu.bus_id)
        xids = [xid for xid in log.xids if xid.card == address]
        row = rows.get(gpu.uuid, CardHealth(gpu.uuid))
        mine = [*_of_rows(gpu, row, vouched=address in log.vouched), *_of_xids(gpu, row, xids, known.asked_s)]
        found += sorted(dict.fromkeys(mine), key=lambda one: not one.unusable)
    gone = "" if isinstance(gpus, Unknown) else ", where nvidia-smi shows no card now"
    found += _of_nobody(log, {pci_address(gpu.bus_id) for gpu in cards}, gone)
    return tuple(found)


def judged(gpus: Iterable[Gpu], found: Sequence[Ailment]) -> tuple[Gpu, ...]:
    """The cards with the worst of each as their fault and warning."""
    return tuple(
        replace(
            gpu,
            fault=gpu.fault or _first(found, gpu.uuid, unusable=True),
            warning=gpu.warning or _first(found, gpu.uuid, unusable=False),
        )
        for gpu in gpus
    )


def _first(found: Sequence[Ailment], uuid: str, *, unusable: bool) -> Reason | None:
    return next((one.reason for one in found if one.uuid == uuid and one.unusable is unusable), None)


def _of_rows(gpu: Gpu, row: CardHealth, *, vouched: bool) -> Iterator[Ailment]:
    """What the driver says now."""

    def told(reason: Reason, detail: str, *, unusable: bool) -> Ailment:
        return Ailment(gpu.uuid, reason, detail, unusable)

    if gpu.fault is not None:
        yield told(gpu.fault, "nvidia-smi says so in the card's row; a person has to reset it or reboot", unusable=True)
    if gpu.warning is not None:
        yield told(gpu.warning, "nvidia-smi warns of it", unusable=False)
    if row.recovery is not None and row.recovery != "None":
        resets = re.search(r"reset|reboot", row.recovery, re.IGNORECASE) is not None
        reason = Reason.GPU_NEEDS_RESET if resets else Reason.NVLINK_ERROR
        yield told(reason, f"the driver advises: {row.recovery}", unusable=resets)
    if row.remap_failed:
        how = "" if vouched else f"; {_HINT.format(_bus(gpu))}"
        yield told(Reason.ROW_REMAP_FAILED, f"bad rows of its memory could not be remapped{how}", unusable=not vouched)
    if row.ecc_uncorrected:
        # A contained error (Xid 94) leaves the counter and a card that goes on; only the driver can tell.
        fine = vouched or row.recovery is not None
        how = "" if fine else f"; {_HINT.format(_bus(gpu))}"
        text = f"uncorrectable memory errors since the driver was loaded{how}"
        yield told(Reason.ECC_UNCORRECTED, text, unusable=not fine)
    if row.remap_pending or row.retired_pending:
        # The card serves on meanwhile (NVIDIA, GPU memory error management: reset at the next opportunity).
        yield told(Reason.ROW_REMAP_PENDING, "bad memory is to be taken out of use by the next reset", unusable=False)


def _of_xids(gpu: Gpu, row: CardHealth, xids: Sequence[Xid], asked_s: float) -> Iterator[Ailment]:
    for one in xids:
        outranked = row.recovery == "None" and one.at_s is not None and asked_s > one.at_s + _GRACE_S
        if one.code in catalogue.WARNS:
            yield Ailment(gpu.uuid, Reason.GPU_XID, f"Xid {one.code}, {catalogue.WARNS[one.code]}", unusable=False)
        reason = _reason(one)
        if reason is not None and not outranked:
            why = one.after or catalogue.UNUSABLE.get(one.code, "")
            text = f"Xid {one.code}, {_plain(why)} (kernel log); {_HINT.format(_bus(gpu))}"
            yield Ailment(gpu.uuid, reason, text, unusable=True)


def _reason(one: Xid) -> Reason | None:
    """Why that error makes a card unusable, None where it does not."""
    if one.code == catalogue.RECOVERY_CHANGED:
        return Reason.GPU_NEEDS_RESET if re.search(r"reset|reboot|FLR", one.after or "", re.IGNORECASE) else None
    if one.code == catalogue.FALLEN_OFF:
        return Reason.GPU_LOST
    return Reason.GPU_NEEDS_RESET if one.code in catalogue.UNUSABLE else None


def _of_nobody(log: KernelLog, present: set[PciAddress | None], gone: str) -> Iterator[Ailment]:
    """Cards that are not shown, and switches: known to the host, held against no card."""
    for one in log.xids:
        reason = _reason(one)
        if reason is not None and one.card not in present:
            yield Ailment("", reason, f"Xid {one.code} at {shown(one.card)}{gone}", unusable=False)
    for error in log.switches:
        if error.fatal:
            yield Ailment("", Reason.NVSWITCH_ERROR, f"{error.switch}: fatal SXid {error.code}", unusable=False)


def _bus(gpu: Gpu) -> str:
    address = pci_address(gpu.bus_id)
    return shown(address) if address is not None else "?"


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)[:100]
