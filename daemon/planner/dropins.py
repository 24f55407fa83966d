"""Drop-ins that somebody added to a unit of ours: which are set aside, and which are only told.

A unit that Stoker named is declared whole: every drop-in that sets anything in one of its own folders is set aside
(`systemctl edit`, `systemctl set-property`). A unit that was adopted is a person's with drop-ins of theirs: there only
those go that change the launch. What applies to many units (`service.d`, `stoker-.service.d`) is a decision for the
host and is never touched: that is the place for settings that are to stay.

What lies in the folders counts, loaded or not: systemd 252 does not say NeedDaemonReload for a drop-in whose folder is
newer than its last reload.
"""

from __future__ import annotations

import re

from daemon.domain.actions import SetAside
from daemon.domain.observation import DropIn, Unit
from daemon.domain.status import Drift, Reason
from daemon.engines.redact import HIDDEN, redact
from daemon.engines.unit import setting_keys
from daemon.planner.world import Desired

EXCERPT_CHARS = 1000
DROPIN_KEY = "file dropin."  # how `Drift.key` of each begins
_SECRETIVE = re.compile(
    r"(?i)^(\s*(?:SetCredential(?:Encrypted)?\s*=[^:]*:"
    r"|Environment\s*=.*?[A-Z0-9_]*(?:KEYS?|TOKEN|SECRET|PASS[A-Z]*|PWD|CREDENTIALS?)=)).*$"
)
_LAUNCH = frozenset(
    f"Service.{key}"
    for key in ("ExecStart", "Environment", "EnvironmentFile", "PassEnvironment", "UnsetEnvironment", "User", "Group",
                "WorkingDirectory", "RootDirectory", "RootImage", "DynamicUser", "ExecSearchPath", "Type")
)  # fmt: skip


def foreign(desired: Desired, unit: Unit, launch_differs: bool) -> tuple[DropIn, ...]:
    """Those to be set aside; `launch_differs`: what systemd has loaded is not the declared launch."""
    found = [one for one in unit.dropins or () if one.path != desired.path]
    if desired.adopted:
        return tuple(one for one in found if launch_differs and setting_keys(one.text) & _LAUNCH)
    return tuple(one for one in found if setting_keys(one.text))


def dropin_drift(desired: Desired, unit: Unit, launch_differs: bool) -> tuple[Drift, ...]:
    """One row for each, by its file's name: it is the same drift when it comes back."""
    return tuple(
        Drift(desired.unit, "file", f"dropin.{_name(one.path)}", "(none)", one.sha256[:12])
        for one in foreign(desired, unit, launch_differs)
    )


def is_dropin(drift: Drift) -> bool:
    """Whether that row is of a drop-in."""
    return drift.key.startswith(DROPIN_KEY)


def set_aside(unit: Unit, drift: Drift) -> tuple[SetAside, ...]:
    """What takes the drop-ins of that name out: it may lie in several folders."""
    wanted = drift.field.removeprefix("dropin.")
    return tuple(
        SetAside(
            unit=unit.name,
            path=one.path,
            ground_sha256=one.sha256,
            excerpt=_excerpt(one.text),
            why=f"somebody added {one.path} (sha256 {one.sha256[:12]}); what is to stay goes into the spec",
            reason=Reason.UNIT_DRIFT,
            cures=(drift.key,),
        )
        for one in unit.dropins or ()
        if _name(one.path) == wanted and one.sha256.startswith(drift.observed)
    )


def _excerpt(text: str) -> str:
    """Its beginning; from a variable named like a secret on, the rest of a line is hidden: quotes hold blanks."""
    lines = text.replace("\\\n", " ").splitlines()
    return redact("\n".join(_SECRETIVE.sub(rf"\1{HIDDEN}", line) for line in lines))[:EXCERPT_CHARS]


def beyond_reach(desired: Desired, unit: Unit) -> tuple[str, ...]:
    """Drop-ins in effect that are neither ours nor in the unit's own folders."""
    own = {one.path for one in unit.dropins or ()} | {desired.path}
    return tuple(path for path in unit.dropin_paths if path not in own)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
