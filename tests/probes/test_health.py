"""What is wrong with a card: its row, its counters, the driver's own advice and the kernel log against each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.domain.health import Ailment, CardHealth, CardHealths, KernelLog, SwitchError, Xid
from daemon.domain.observation import Gpu, Observation, Unknown
from daemon.domain.status import Reason
from daemon.probes import xid as catalogue
from daemon.probes.health import ailments, judged, parse_health
from daemon.probes.report import Answer, parse_answer, parse_observation
from tests.probes.reference import NONCE, frame, sections, uuid

pytestmark = pytest.mark.strays

CARD = (0, 0x3B, 0)
GPU = Gpu(0, uuid(0), "00000000:3B:00.0", "NVIDIA H200", "580.159.04", 143771, 0)
OTHER = Gpu(1, uuid(1), "00000000:5E:00.0", "NVIDIA H200", "580.159.04", 143771, 0)
SILENT = Unknown(Reason.LOOK_INCOMPLETE)
KERNEL = Path(__file__).parent.parent / "golden" / "kernel_log"


def counted(asked_s: float = 1000.0, **more: object) -> CardHealths:
    return CardHealths(asked_s, (CardHealth(uuid(0), **more),))  # type: ignore[arg-type]


def log(*codes: int, at_s: float | None = 500.0, after: str | None = None) -> KernelLog:
    return KernelLog(tuple(Xid(CARD, code, at_s, after) for code in codes))


def unusable(found: tuple[Ailment, ...]) -> list[Reason]:
    return [one.reason for one in found if one.unusable]


def warned(found: tuple[Ailment, ...]) -> list[Reason]:
    return [one.reason for one in found if not one.unusable]


@pytest.mark.parametrize("code", sorted(catalogue.UNUSABLE))
def test_an_error_that_asks_for_a_reset_makes_that_card_unusable_and_no_other(code: int) -> None:
    found = ailments((GPU, OTHER), SILENT, log(code))
    assert unusable(found) == [Reason.GPU_LOST if code == 79 else Reason.GPU_NEEDS_RESET]
    first, second = judged((GPU, OTHER), found)
    assert (first.fault is None, second.fault) == (False, None)


@pytest.mark.parametrize("code", [13, 31, 32, 37, 38, 43, 45, 63, 66, 67, 68, 69, 94])
def test_an_error_of_the_application_is_held_against_no_card(code: int) -> None:
    assert ailments((GPU, OTHER), SILENT, log(code)) == ()


@pytest.mark.parametrize("code", [74, 92, 144])
def test_an_error_that_a_person_should_see_warns(code: int) -> None:
    assert (unusable(found := ailments((GPU,), SILENT, log(code))), warned(found)) == ([], [Reason.GPU_XID])


def test_the_driver_asked_later_that_advises_nothing_outranks_an_error() -> None:
    assert unusable(ailments((GPU,), counted(recovery="None"), log(119))) == []
    assert unusable(ailments((GPU,), counted(asked_s=499.0, recovery="None"), log(119))) == [Reason.GPU_NEEDS_RESET]
    assert unusable(ailments((GPU,), counted(recovery=None), log(119))) == [Reason.GPU_NEEDS_RESET]
    assert unusable(ailments((GPU,), counted(recovery="None"), log(119, at_s=None))) == [Reason.GPU_NEEDS_RESET]


@pytest.mark.parametrize("advice", ["Reset", "Reboot", "Drain and Reset"])
def test_what_the_driver_advises_now_is_enough(advice: str) -> None:
    found = ailments((GPU,), counted(recovery=advice), KernelLog())
    assert unusable(found) == [Reason.GPU_NEEDS_RESET]
    assert advice in found[0].detail


def test_advice_that_needs_no_reset_only_warns() -> None:
    assert warned(ailments((GPU,), counted(recovery="Drain P2P"), KernelLog())) == [Reason.NVLINK_ERROR]


@pytest.mark.parametrize(("after", "bad"), [("GPU Reset Required", True), ("OS Reboot", True), ("Drain P2P", False)])
def test_the_advice_written_to_the_kernel_log_counts_where_the_tool_does_not_tell_it(after: str, bad: bool) -> None:
    assert bool(unusable(ailments((GPU,), SILENT, log(154, after=after)))) is bad


def test_uncorrectable_errors_are_judged_by_the_driver_where_it_can() -> None:
    assert unusable(ailments((GPU,), counted(ecc_uncorrected=1), KernelLog())) == [Reason.ECC_UNCORRECTED]
    contained = ailments((GPU,), counted(ecc_uncorrected=1, recovery="None"), KernelLog())
    assert (unusable(contained), warned(contained)) == ([], [Reason.ECC_UNCORRECTED])
    assert ailments((GPU,), counted(ecc_uncorrected=0), KernelLog()) == ()


def test_rows_that_could_not_be_remapped_make_it_unusable_and_pending_ones_warn() -> None:
    assert unusable(ailments((GPU,), counted(remap_failed=True, recovery="None"), KernelLog())) == [
        Reason.ROW_REMAP_FAILED
    ]
    for pending in (counted(remap_pending=True), counted(retired_pending=True)):
        found = ailments((GPU,), pending, KernelLog())
        assert (unusable(found), warned(found)) == ([], [Reason.ROW_REMAP_PENDING])


def test_a_person_can_vouch_for_a_card() -> None:
    bad = counted(remap_failed=True, ecc_uncorrected=3)
    assert unusable(ailments((GPU,), bad, KernelLog(vouched=frozenset({CARD})))) == []
    assert "echo 'stoker: GPU 0000:3b:00 is well' >/dev/kmsg" in ailments((GPU,), bad, KernelLog())[0].detail


def test_a_card_that_is_gone_and_a_switch_are_told_of_the_host() -> None:
    found = ailments((OTHER,), SILENT, KernelLog(log(79, 13).xids, (SwitchError("nvidia-nvswitch0", 20034, True),)))
    assert [(one.uuid, one.reason, one.unusable) for one in found] == [
        ("", Reason.GPU_LOST, False), ("", Reason.NVSWITCH_ERROR, False)
    ]  # fmt: skip
    assert "0000:3b:00" in found[0].detail


@pytest.mark.parametrize(
    ("row", "card"),
    [
        ("0, [N/A], No, No, None", CardHealth("GPU-00", 0, None, False, False, "None")),
        ("2, [N/A], Yes, No, Drain and Reset", CardHealth("GPU-00", 2, None, True, False, "Drain and Reset")),
        ("[N/A], No, N/A, [N/A]", CardHealth("GPU-00", None, False, None, None, None)),
        ("N/A, Yes", CardHealth("GPU-00", None, True)),
        ("[GPU requires reset], [Unknown Error], [GPU is lost], , N/A", CardHealth("GPU-00")),
    ],
)
def test_rows_are_read_as_far_as_the_driver_knows_its_fields(row: str, card: CardHealth) -> None:
    for exit_status, more in ((0, ""), (14, "WARNING: infoROM is corrupted at gpu 0000:3B:00.0\n")):
        assert parse_health(exit_status, f"asked 12345\nGPU-00, {row}\n{more}") == CardHealths(123.45, (card,))


@pytest.mark.parametrize(
    "text", ["", "GPU-00, 0, No\n", "asked x\n", "asked 1\nGPU-00, 0\n", "asked 1\nGPU-00, many, No\n"]
)
def test_what_is_no_row_makes_all_of_it_unknown(text: str) -> None:
    found = parse_health(0, text)
    assert isinstance(found, Unknown)
    assert found.reason is Reason.UNPARSABLE


@pytest.mark.parametrize(
    ("exit_status", "text", "reason"),
    [
        (2, 'Field "gpu_recovery_action" is not a valid field to query.\n', Reason.TOOL_FAILED),
        (18, "Failed to initialize NVML: Driver/library version mismatch\n", Reason.DRIVER_LIBRARY_MISMATCH),
        (124, "", Reason.TOOL_TIMED_OUT),
    ],
)
def test_a_question_that_failed_is_unknown_and_never_well(exit_status: int, text: str, reason: Reason) -> None:
    found = parse_health(exit_status, f"asked 1\n{text}")
    assert isinstance(found, Unknown)
    assert found.reason is reason


def look(**changes: tuple[int, bytes]) -> Observation:
    answer = parse_answer(frame({**sections(), **changes}), NONCE)
    assert isinstance(answer, Answer)
    seen = parse_observation(answer, "a", 1.0)
    assert isinstance(seen, Observation)
    return seen


def faults(seen: Observation) -> list[Reason | None]:
    assert not isinstance(seen.gpus, Unknown)
    return [gpu.fault for gpu in seen.gpus]


def test_a_look_puts_the_kernel_log_and_the_cards_together() -> None:
    text = (KERNEL / "xid-79-dmesg.txt").read_bytes().replace(b"0000:3b:00", b"0000:08:00")
    old = sections()["health"][1].replace(b"asked 12345000", b"asked 100")
    assert faults(look(kernel=(0, text), health=(0, old))) == [None] * 2 + [Reason.GPU_LOST] + [None] * 5
    assert faults(look(kernel=(0, text), health=(124, b""))) == [None] * 2 + [Reason.GPU_LOST] + [None] * 5


def test_a_kernel_log_that_cannot_be_read_is_unknown_and_what_was_known_of_it_stands() -> None:
    text = (KERNEL / "xid-79-dmesg.txt").read_bytes().replace(b"0000:3b:00", b"0000:08:00")
    seen = look(kernel=(124, text), health=(124, b""))
    assert isinstance(seen.kernel, Unknown)
    assert faults(seen)[2] is Reason.GPU_LOST
    refused = look(kernel=(1, b"dmesg: read kernel buffer failed: Operation not permitted\n"))
    assert isinstance(refused.kernel, Unknown)
    assert "not permitted" in refused.kernel.detail
    assert faults(refused) == [None] * 8


def test_an_older_helper_that_prints_none_of_it_costs_nothing_else() -> None:
    left = {name: one for name, one in sections().items() if name not in ("health", "kernel", "space")}
    answer = parse_answer(frame(left), NONCE)
    assert isinstance(answer, Answer)
    seen = parse_observation(answer, "a", 1.0)
    assert isinstance(seen, Observation)
    assert all(isinstance(part, Unknown) for part in (seen.health, seen.kernel, seen.space))
    assert faults(seen) == [None] * 8
