"""What differs between a declared instance and the look, layer by layer, each value bounded for a person.

`launch` marks the differences that change what the process is: only those may ever restart it (law 5). Layers
`placement`, `effective` and `inventory` are in `facts`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from daemon.domain.observation import Unit, Unknown
from daemon.domain.status import Drift, Layer
from daemon.engines.launch import argv_runs
from daemon.engines.redact import HIDDEN, is_secret_name, redact
from daemon.engines.unit import parse_unit
from daemon.planner.dropins import dropin_drift
from daemon.planner.environment import extra_drift, inherited_drift
from daemon.planner.world import Desired

_POLICIES = ("StartLimitIntervalSec", "StartLimitBurst", "TimeoutStopSec", "RestartSec")
_OURS = ("STOKER_STORE", "STOKER_SPEC", "STOKER_LAUNCH")


# Other states (static, indirect, generated …) are not changed by `systemctl enable`.
TO_ENABLE = frozenset({"", "disabled", "linked", "linked-runtime"})


def drift_of(desired: Desired, unit: Unit | None, inherited: frozenset[str] | Unknown) -> tuple[Drift, ...]:
    """All drift of one instance, lowest layer first. A unit that does not exist is drift of its file.

    `inherited` are the variables of systemd's own environment.
    """
    if unit is None or unit.file is None:
        return ()
    if masked(unit):
        return (Drift(desired.unit, "loaded", "masked", "no", "masked" if unit.load_state == "masked" else "a link"),)
    loaded = loaded_drift(desired, unit)
    differs = any(d.launch for d in loaded) or unit.load_state == "bad-setting"
    if unit.file.text is None:
        missing = Drift(desired.unit, "file", "present", "yes", "no", launch=True)
        # Beside a unit that is being adopted, what its drop-ins do to our launch is known once ours is loaded.
        return (missing, *(() if desired.adopted else dropin_drift(desired, unit, differs)))
    found = [*file_drift(desired, unit), *dropin_drift(desired, unit, differs), *loaded]
    if unit.need_daemon_reload:
        found.append(Drift(desired.unit, "loaded", "reload", "no", "needed"))
    found += inherited_drift(desired, unit, inherited)
    if desired.declared.view.run:
        found += _standing_drift(desired, unit)
    return (*found, *running_drift(desired, unit))


def masked(unit: Unit) -> bool:
    """A person masked it, or put a link in its place: reported, never forced."""
    return unit.load_state == "masked" or (unit.file is not None and unit.file.link)


def behind_mask(unit: Unit, path: str) -> bool:
    """Whether our unit file may come back from behind a person's mask, enabled; a drop-in lies beside it."""
    return masked(unit) and not unit.running and path.endswith(f"/{unit.name}")


def unseen(desired: Desired, unit: Unit) -> tuple[Layer, ...]:
    """Layers of which nothing can be said now."""
    found: list[Layer] = [] if unit.file is not None and unit.dropins is not None else ["file"]
    if isinstance(unit.loaded, Unknown):
        found.append("loaded")
    if unit.running and not unit.waits_in_gate and (unit.main is None or not unit.main.argv):
        found.append("running")
    return tuple(found)


def _standing_drift(desired: Desired, unit: Unit) -> list[Drift]:
    """It is to start by itself after a boot, and to run now. What starts or stops is on its way and no drift."""
    found = []
    if unit.unit_file_state not in ("enabled", "enabled-runtime", "static"):
        found.append(Drift(desired.unit, "loaded", "enabled", "enabled", unit.unit_file_state or "unknown"))
    if unit.active_state in ("inactive", "failed"):
        found.append(Drift(desired.unit, "running", "active", "active", unit.active_state))
    return found


def file_drift(desired: Desired, unit: Unit) -> tuple[Drift, ...]:
    """The unit file's launch against the declared; then its text against what we wrote, never against the template."""
    if unit.file is None or unit.file.text is None:
        return ()
    parsed = parse_unit(unit.file.text)
    found = _launch_drift(
        desired,
        "file",
        parsed.argv,
        parsed.env,
        parsed.user or "",
        parsed.working_directory or "",
    )
    found = found or _policy_drift(desired, unit.file.text)
    record = desired.declared.record
    if not found and record is not None and record.written_sha256:
        known = (record.written_sha256, file_sha256(desired.text))
        if unit.file.sha256 not in known:
            return (Drift(desired.unit, "file", "text", record.written_sha256[:12], (unit.file.sha256 or "")[:12]),)
    return found


def _policy_drift(desired: Desired, text: str) -> tuple[Drift, ...]:
    """What the spec declares for systemd beside the launch: written and reloaded, never a restart."""
    declared, observed = _policies(desired.text), _policies(text)
    return tuple(
        Drift(desired.unit, "file", key, _short(declared.get(key)), _short(observed.get(key)))
        for key in _POLICIES
        if declared.get(key) != observed.get(key)
    )


def _policies(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {key: value for key, equals, value in pairs if equals and key in _POLICIES}


def loaded_drift(desired: Desired, unit: Unit) -> tuple[Drift, ...]:
    """What systemd has loaded against the declared launch; an unreadable unit has no drift, only an unknown."""
    if unit.loaded is None or isinstance(unit.loaded, Unknown):
        return ()
    loaded = unit.loaded
    return _launch_drift(desired, "loaded", loaded.argv, loaded.env, loaded.user, loaded.working_directory)


def running_drift(desired: Desired, unit: Unit) -> tuple[Drift, ...]:
    """argv and environment of the live main process against the declared; nothing to say while there is none.

    A user, a folder or a variable taken away shows in neither: there the launch that the process carries tells, once
    file and systemd both hold the declared one.
    """
    if unit.main is None or not unit.running or unit.waits_in_gate or not unit.main.argv:
        return ()
    found = _launch_drift(desired, "running", unit.main.argv, unit.main.env, None, None)
    found += extra_drift(desired, unit)
    return found or (launch_drift(desired, unit) if _holds_declared(desired, unit) else ())


def launch_mark(unit: Unit) -> str | None:
    """STOKER_LAUNCH of the live main process: which launch systemd started it from; None when it carries none."""
    return None if unit.main is None else dict(unit.main.env).get("STOKER_LAUNCH") or None


def launch_drift(desired: Desired, unit: Unit) -> tuple[Drift, ...]:
    """The live process was started from another launch than the declared, whatever can be seen of the difference."""
    mark = launch_mark(unit)
    if mark is None or mark == desired.launch_hash:
        return ()
    return (Drift(desired.unit, "running", "launch", desired.launch_hash, mark[:64], launch=True),)


def _holds_declared(desired: Desired, unit: Unit) -> bool:
    """Whether a start of now would be the declared launch: the file and what systemd loaded both carry its mark."""
    if unit.file is None or unit.file.text is None or unit.loaded is None or isinstance(unit.loaded, Unknown):
        return False
    marks = [dict(env or ()).get("STOKER_LAUNCH") for env in (parse_unit(unit.file.text).env, unit.loaded.env)]
    return all(mark == desired.launch_hash for mark in marks)


def _launch_drift(
    desired: Desired,
    layer: Layer,
    argv: tuple[str, ...] | None,
    env: Iterable[tuple[str, str]] | None,
    user: str | None,
    folder: str | None,
) -> tuple[Drift, ...]:
    launch, unit = desired.launch, desired.unit
    found: list[Drift] = []
    same = argv_runs(launch, argv or ()) if layer == "running" else argv == launch.argv
    if not same:
        found.append(Drift(unit, layer, "argv", *_argv_difference(launch.argv, argv or ()), launch=True))
    observed = {key: value for key, value in env or () if key not in _OURS}
    found += _env_drift(unit, layer, dict(launch.env), observed)
    if user is not None and (user or "root") != (launch.user or "root"):
        found.append(Drift(unit, layer, "user", launch.user or "root", user or "root", launch=True))
    if folder is not None and _folder(folder) != _folder(launch.working_directory or ""):
        found.append(Drift(unit, layer, "workingDirectory", launch.working_directory or "", folder, launch=True))
    return tuple(found)


def _env_drift(unit: str, layer: Layer, declared: Mapping[str, str], observed: Mapping[str, str]) -> list[Drift]:
    found = [
        Drift(unit, layer, f"env.{key}", _value(key, declared[key]), _value(key, observed.get(key)), launch=True)
        for key in sorted(declared)
        if observed.get(key) != declared[key]
    ]
    if layer != "running":  # a process has systemd's own variables too; a unit has only what somebody declared
        extra = sorted(set(observed) - set(declared))
        found += [Drift(unit, layer, f"env.{key}", "(not set)", "(set)", launch=True) for key in extra]
    return found


def _argv_difference(declared: tuple[str, ...], observed: tuple[str, ...]) -> tuple[str, str]:
    """What stands between the common head and the common tail, with the flag that a differing value is of."""
    head = _common(declared, observed)
    tail = _common(declared[head:][::-1], observed[head:][::-1])
    sides = [(argv, head, len(argv) - tail) for argv in (declared, observed)]
    if head and declared[head - 1].startswith("--") and all(begin < end for _, begin, end in sides):
        sides = [(argv, head - 1, end) for argv, _, end in sides]
    first, second = (_words(*side) for side in sides)
    return first, second


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many arguments both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _words(argv: tuple[str, ...], begin: int, end: int) -> str:
    """These arguments; what stands behind a flag for a key is nobody's business, nor is a key in the flag itself."""
    shown = [
        HIDDEN if at and argv[at - 1].startswith("--") and is_secret_name(argv[at - 1].lstrip("-")) else word
        for at, word in enumerate(argv[:end])
    ]
    return _short(redact(" ".join(shown[begin:]))) or "(nothing)"


def _value(name: str, value: str | None) -> str:
    return HIDDEN if value is not None and is_secret_name(name) else _short(None if value is None else redact(value))


def _short(value: str | None) -> str:
    return "(not set)" if value is None else value[:200]


def _folder(value: str) -> str:
    """systemd shows an unset working directory as "" or "/", and `!` or `-` before one that may be missing."""
    return value.lstrip("-!") or "/"


def file_sha256(text: str) -> str:
    """Hash of a unit file as the host gives it: hex SHA-256 of its UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()
