"""Looks whether a host has what Stoker needs, and says what to do about each thing it lacks.

Called by `controller` for `stoker doctor HOST`. It changes nothing on the host and needs nothing there but a shell.
One exec asks everything; what could not be asked is None, never False.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from daemon import host
from daemon.domain.errors import StokerError, TransportError, ended
from daemon.domain.host import HostSpec
from daemon.domain.status import Reason
from daemon.ssh import Road
from daemon.verbs import ask

SYSTEMD_MIN = 249
CLOCK_SLACK_S = 5.0
_LOOK_S = 30.0
_TOOLS = "systemctl busctl ss flock timeout grep find journalctl sha256sum stat"
_SMI_PLACES = (
    "/usr/bin/nvidia-smi /usr/local/bin/nvidia-smi /usr/lib/wsl/lib/nvidia-smi "
    "/usr/local/nvidia/bin/nvidia-smi /opt/bin/nvidia-smi"
)

# No line break inside, as in `install`. Each statement prints one `stoker.KEY=VALUE` line; no value holds a break.
_SAY = 'say() { printf "stoker.%s=%s\\n" "$1" "$(printf %s "$2" | tr -d "\\000-\\037" | head -c 300)"; }'
_LOOK = "; ".join(
    (
        _SAY,
        'say uid "$(id -u)"',
        'say pid1 "$(cat /proc/1/comm 2>/dev/null)"',
        "say systemd \"$(timeout 5 systemctl --version 2>/dev/null | sed -n '1s/^systemd \\([0-9]*\\).*/\\1/p')\"",
        'say proc "$(cat /proc/1/stat /proc/1/cgroup >/dev/null 2>&1 && echo yes)"',
        f'for t in {_TOOLS}; do command -v "$t" >/dev/null 2>&1 || missing="${{missing:-}} $t"; done',
        'say missing "${missing:-}"',
        'say grepz "$(printf "a\\000b\\000" | grep -zc b 2>/dev/null)"',
        f'smi=$(command -v nvidia-smi) || for f in {_SMI_PLACES}; do if [ -x "$f" ]; then smi=$f; break; fi; done',
        'say smi "${smi:-}"',
        'if [ -n "${smi:-}" ]; then out=$(timeout -k 1 10 "$smi" -L 2>&1); say smi_exit $?; say smi_says "$out"; fi',
        f'say options "$(d={host.HELPER_PATH}; while [ "$d" ] && [ ! -d "$d" ]; do d=${{d%/*}}; done; '
        'findmnt -no OPTIONS -T "${d:-/}" 2>/dev/null)"',
        "timeout 10 journalctl -q -n 1 --no-pager >/dev/null 2>&1",
        "say journal $?",
        'say client "$(command -v python3 || command -v curl)"',
        f'if [ -e {host.HOLD_PATH} ]; then say hold "held: $(head -c 200 {host.HOLD_PATH} 2>&1)"; fi',
        'say now "$(date +%s)"',
        'say synced "$(timeout 5 timedatectl show -p NTPSynchronized --value 2>/dev/null)"',
        "say end yes",
    )
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing a host needs. `ok` None: it could not be looked at, or does not decide anything."""

    name: str
    ok: bool | None
    message: str
    remedy: str = ""


Facts = Mapping[str, str]


async def examine(road: Road, spec: HostSpec, now_s: float | None = None) -> list[Check]:
    """All checks in a fixed order, whatever fails. `now_s` is the daemon's wall clock; None leaves the clock open."""
    try:
        done = await road.run(("/bin/sh", "-c", _LOOK), b"", _LOOK_S)
    except TransportError as exc:
        return await _without_a_look(road, exc)
    facts = parse(done.stdout)
    if facts.get("end") != "yes":
        told = done.stderr[-300:].decode("utf-8", "replace").strip()
        early = f"{Reason.LOOK_INCOMPLETE}: the look ended early, {ended(done.exit_status, told)}"
        return _unseen([Check("reachable", True, "a command came through"), Check("login-shell", None, early)])
    known = [
        Check("reachable", True, "a command came through"),
        Check("login-shell", True, "hands commands to /bin/sh"),
        _root(facts),
    ]
    seen = [rule(facts) for rule in _RULES]
    return [*known, *seen, _gpus(facts, spec), await _helper(road), _clock(facts, now_s)]


def parse(stdout: bytes) -> dict[str, str]:
    """The facts among whatever else the login shell says; the last line of a key wins."""
    lines = stdout.decode("utf-8", "replace").splitlines()
    pairs = (line.removeprefix("stoker.").partition("=") for line in lines if line.startswith("stoker."))
    return {key: value for key, _, value in pairs}


_NAMES = (
    *("reachable", "login-shell", "sudo", "systemd", "proc", "tools", "journal", "probe-client"),
    *("helper-folder", "hold", "nvidia-smi", "helper", "clock"),
)


def _unseen(known: list[Check]) -> list[Check]:
    """The known checks in their order, and None for each of the others."""
    by_name = {check.name: check for check in known}
    return [by_name.get(name, Check(name, None, "could not be looked at")) for name in _NAMES]


async def _without_a_look(road: Road, exc: TransportError) -> list[Check]:
    """What a failed road, shell or sudo still tells."""
    through = Check("reachable", True, "the login works")
    match exc.reason:
        case Reason.SUDO_DENIED:
            helper = await _helper(road)
            limited = Check("sudo", None, "sudoers names the helper alone", "general sudo lets doctor see the rest")
            denied = Check("sudo", False, exc.message, "allow the helper without a password in sudoers")
            return _unseen([through, _shell(None), limited if helper.ok else denied, helper])
        case Reason.UNSUPPORTED_LOGIN_SHELL:
            return _unseen([through, _shell(exc)])
    return _unseen([Check("reachable", False, str(exc), "see the reason; try ssh by hand from the daemon's machine")])


def _shell(exc: TransportError | None) -> Check:
    if exc is None:
        return Check("login-shell", True, "hands commands to /bin/sh")
    return Check("login-shell", False, str(exc), "give the SSH user a Bourne shell (chsh -s /bin/sh)")


def _root(facts: Facts) -> Check:
    uid = facts.get("uid", "")
    remedy = "reach the host as root, or set sudo: true and allow it without a password"
    return Check("sudo", uid == "0", f"commands run with uid {uid or 'unknown'}", "" if uid == "0" else remedy)


def _systemd(facts: Facts) -> Check:
    version, pid1 = facts.get("systemd", ""), facts.get("pid1", "")
    if pid1 != "systemd":
        remedy = "Stoker only observes here; name a machine or system container with its own systemd"
        return Check("systemd", False, f"PID 1 is {pid1 or 'unknown'}", remedy)
    ok = version.isdecimal() and int(version) >= SYSTEMD_MIN
    remedy = "" if ok else f"Stoker only observes below {SYSTEMD_MIN}; upgrade the system"
    return Check("systemd", ok, f"systemd {version or 'of unknown version'} is PID 1", remedy)


def _proc(facts: Facts) -> Check:
    ok = facts.get("proc") == "yes"
    return Check("proc", ok, f"/proc is {'' if ok else 'not '}readable", "" if ok else "mount /proc without hidepid")


def _tools(facts: Facts) -> Check:
    missing = facts.get("missing", "").split() + ([] if facts.get("grepz") == "1" else ["grep -z"])
    if not missing:
        return Check("tools", True, "all there")
    return Check("tools", False, f"missing: {', '.join(missing)}", "install systemd, iproute2, util-linux, GNU grep")


def _journal(facts: Facts) -> Check:
    status = facts.get("journal", "")
    remedy = "" if status == "0" else "without it no failure can be classified; look at systemd-journald"
    return Check("journal", status == "0", f"journalctl ends with {status or 'nothing'}", remedy)


def _client(facts: Facts) -> Check:
    client = facts.get("client", "")
    remedy = "" if client else "install python3 or curl; else only engines with their own Python can be probed"
    return Check("probe-client", bool(client), client or "neither python3 nor curl", remedy)


def _folder(facts: Facts) -> Check:
    options = facts.get("options", "")
    if not options:
        return Check("helper-folder", None, "mount options could not be read")
    ok = "noexec" not in options.split(",")
    remedy = "" if ok else "mount it with exec; the helper has to run from there"
    return Check("helper-folder", ok, f"{host.HELPER_PATH} is on a file system mounted {options}", remedy)


def _hold(facts: Facts) -> Check:
    text = facts.get("hold")
    remedy = "" if text is None else f"remove {host.HOLD_PATH} when Stoker may act again"
    return Check("hold", text is None, text or "no hold", remedy)


_RULES: tuple[Callable[[Facts], Check], ...] = (_systemd, _proc, _tools, _journal, _client, _folder, _hold)


def _gpus(facts: Facts, spec: HostSpec) -> Check:
    path, status = facts.get("smi", ""), facts.get("smi_exit", "")
    if not path:
        needed = spec.gpus is None or spec.gpus.count > 0
        return Check("nvidia-smi", False if needed else None, "not found", "install the NVIDIA driver's tools")
    ok = status == "0"
    says = f"{path} ends with {status}" + ("" if ok else f": {facts.get('smi_says', '')}")
    return Check("nvidia-smi", ok, says, "" if ok else "124: it hangs; else see its message; often a reboot is due")


async def _helper(road: Road) -> Check:
    try:
        version = (await ask(road, "version", (), timeout_s=_LOOK_S)).version
    except StokerError as exc:
        return Check("helper", False, str(exc), "`stoker helper install HOST`, or by hand `stoker helper print`")
    ok = version == host.VERSION
    return Check("helper", ok, f"version {version}", "" if ok else f"install version {host.VERSION}")


def _clock(facts: Facts, now_s: float | None) -> Check:
    theirs, synced = facts.get("now", ""), facts.get("synced") or "unknown"
    if now_s is None or not theirs.isdecimal():
        return Check("clock", None, f"synchronized: {synced}")
    away_s = abs(int(theirs) - now_s)
    ok = away_s <= CLOCK_SLACK_S
    text = f"{away_s:.0f} s from the daemon's, synchronized: {synced}"
    return Check("clock", ok, text, "" if ok else "run chrony or systemd-timesyncd on both")
