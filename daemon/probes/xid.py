"""Which Xid errors make a card unusable, and which a person should know of. Read by `health`.

Source: NVIDIA's Xid catalogue, docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, as of 29 October 2025
(Ampere and newer). A card is unusable where the catalogue's immediate action is RESET_GPU or RESTART_BM (the machine),
or WORKFLOW_XID_48, which is a reset whether alone or with Xid 63 or 64. RESTART_APP (13, 31, 32, 39 to 41, 68, 69, 94
…) and IGNORE (37, 38, 43, 44, 63, 66, 67, 92, 93 …) are no reason to keep from a card: the application's fault, or
contained. Xid 45 only follows another. Xid 74 and 144 to 150 ask for a look at the NVLink, mostly without a reset: they
warn, and where one does need a reset the driver says so itself (Xid 154, `gpu_recovery_action`).
"""

from __future__ import annotations

UNUSABLE = {
    46: "the card stopped processing",
    48: "an uncorrectable memory error",
    62: "a micro-controller of the card halted",
    64: "a bad row of memory could not be remapped",
    79: "the card has fallen off the bus",
    95: "an uncontained memory error",
    109: "a context switch timed out",
    110: "a security fault",
    119: "the card's system processor did not answer",
    120: "an error of the card's system processor",
    136: "a link could not be trained",
    140: "an unrecovered memory error",
    143: "the card could not be initialised",
    155: "a fatal NVLink error",
    156: "a resource of the card was retired",
    158: "a fatal timeout",
}
WARNS = {
    54: "auxiliary power is not connected",
    74: "an NVLink error",
    92: "a high rate of single-bit memory errors",
    157: "a resource of the card could not be retired",
    **dict.fromkeys(range(144, 151), "an NVLink error"),
}
FALLEN_OFF = 79
RECOVERY_CHANGED = 154
