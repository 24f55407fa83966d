"""Answers of two machines made comparable: what must differ is replaced, everything else stays to the byte.

Replaced, and nothing else: nonces and times taken; pids (by the name of their process), start ticks, invocations, boot
and machine ids (by the order in which they appear); stamps of systemd (0 stays, others become their rank in the block);
job numbers; the test machine's own facts (container, memory, disk, uptime); cgroups of other hierarchies; figures
behind the start in /proc/PID/stat, and there S for R; numbers of sessions and of sshd's startups, and the room behind
sshd's titles; what a gate runs at that moment, and what ended during the look; dates, ports of clients and seconds in
log lines, when the driver was asked for its counters, and how full disks are. Processes come in the order of awk's
hash, so sections of them are sorted. A log is compared as the set of its lines, without those of the steps' questions
for health and of systemd's KILLs, which race with the engine's.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from daemon.domain.observation import Unknown
from daemon.probes.report import Answer, parse_answer
from tests.hosts.sim_sides import NONCE, Shot

_STAMP = re.compile(r"^(\w+TimestampMonotonic)=(\d+)$", re.MULTILINE)
_OWN_FACTS = re.compile(r"^(container|monotonic_us|uptime_s|mem_available_kib)=\S+$", re.MULTILINE)
_LOG = (
    (re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "[DATE"),
    (re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d"), "DATE"),
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"\b(elapsed=|took |and )\d+\.\d+"), r"\1S"),
    (re.compile(r"process \[?\d+\]?|pid=\d+|parent_pid=\d+|\bpid \d+"), "PID"),
    (re.compile(r"counter is at \d+"), "counter is at N"),
)
_STARTUPS = re.compile(r"\d+ of \d+-\d+ startups")
_SESSION = re.compile(r"session-\d+\.scope")
PASSING = "<passing>"
_SORTED = ("uids", "nvfds", "listeners")
_PIDS = ("candidates", "environ_ok")


@dataclass
class Names:
    """Names for one machine's numbers, given in the order in which they appear."""

    pids: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def identifier(self, value: str) -> str:
        return self.ids.setdefault(value, f"ID{len(self.ids)}") if value else ""

    def pid(self, value: str) -> str:
        return "0" if value == "0" else self.pids.get(value, "PID?")

    def learn(self, answer: Answer) -> None:
        """Pids by their process's name and first words, which both machines share."""
        section, above = answer.sections.get("processes"), dict[str, str]()
        for line in section.text.split("\n") if section is not None else ():
            path, _, content = line.partition("\0")
            if path.endswith("/cmdline"):
                words = [word for word in content.split("\0") if word]
                self.pids[path.split("/")[2]] = _STARTUPS.sub("startups", "<" + " ".join(words[:3]) + ">")
            elif path.endswith("/stat"):
                above[path.split("/")[2]] = content.rpartition(") ")[2].split(" ")[1]
        for _ in range(3):  # what the gate runs comes and goes: a sleep, a tool, the tool's own
            gates = {
                pid for pid in above if "lib/stoker/gate" in self.pids.get(pid, "") or self.pids.get(pid) == PASSING
            }
            self.pids |= {pid: PASSING for pid, parent in above.items() if parent in gates}


@dataclass
class Shapes:
    """The comparable form of one machine's answers, step by step."""

    names: Names = field(default_factory=Names)

    def of(self, shot: Shot) -> dict[str, object]:
        answer = parse_answer(shot.stdout, NONCE)
        if isinstance(answer, Unknown):
            return {"ssh": shot.exit_status, "stdout": shot.stdout, "stderr": shot.stderr}
        self.names.learn(answer)
        found: dict[str, object] = {
            "ssh": shot.exit_status, "verb": answer.verb, "version": answer.version, "exit": answer.exit_status,
            "names": list(answer.sections), "stderr": shot.stderr,
        }  # fmt: skip
        for name, section in answer.sections.items():
            text = _SESSION.sub("session-N.scope", _STARTUPS.sub("startups", section.data.decode("utf-8", "replace")))
            found[name] = (section.exit_status, _lasting(self._data(answer.verb, name, text)))
        return found

    def _data(self, verb: str, name: str, text: str) -> object:
        make = getattr(self, f"_{name}", None)
        if make is not None:
            return make(text)
        if name in _PIDS:
            lines = [[self.names.pid(pid) for pid in line.split()] for line in text.split("\n")]
            return [sorted(name for name in line if name not in (PASSING, "PID?")) for line in lines]
        text = self._pid_lines(text) if name == "result" and verb == "signal" else text
        text = re.sub(r"\d{8}T\d{6}Z", "STAMP", text) if name == "result" else text
        return sorted(self._paths(text).split("\n")) if name in _SORTED else self._paths(text)

    # ---- by section ----

    def _meta(self, text: str) -> str:
        text = _OWN_FACTS.sub(r"\1=OWN", text)
        return re.sub(r"^(boot_id|machine_id)=(\S+)$", self._named, text, flags=re.MULTILINE)

    def _named(self, found: re.Match[str]) -> str:
        assert len(found[2]) in (32, 36)
        return f"{found[1]}={self.names.identifier(found[2])}"

    def _shm(self, text: str) -> list[str]:
        """Of the host's clock its shape; of the files no inode and no time."""
        head, *lines = text.split("\n")
        assert re.fullmatch(r"now \d+\.\d{9} \d+", head)
        return sorted(re.sub(r" \d+ \d+\.\d{10} ", " INODE TIME ", line) for line in lines)

    def _units(self, text: str) -> list[str]:
        return [self._block(block) for block in text.split("\n\n")]

    _before = _after = _units

    def _block(self, block: str) -> str:
        stamps = sorted({int(value) for _, value in _STAMP.findall(block)} - {0})
        block = _STAMP.sub(lambda f: f"{f[1]}={'0' if f[2] == '0' else f'rank {_rank(int(f[2]), stamps)}'}", block)
        block = re.sub(
            r"^InvocationID=(\w+)$", lambda f: f"InvocationID={self.names.identifier(f[1])}", block, flags=re.M
        )
        block = re.sub(r"^(MainPID|ControlPID)=(\d+)$", lambda f: f"{f[1]}={self.names.pid(f[2])}", block, flags=re.M)
        return re.sub(r"^Job=\d+$", "Job=N", block, flags=re.M)

    def _loaded(self, text: str) -> list[object]:
        lines: list[object] = []
        for line in text.split("\n"):
            if not line.startswith("{"):
                lines.append(line)
                continue
            value = json.loads(line)
            if value["type"].startswith("a("):
                for command in value["data"]:
                    assert len(command) == 10
                    command[3:8] = ["set" if number else 0 for number in command[3:8]]
            lines.append((value, line.startswith('{"type":"')))
        return lines

    def _processes(self, text: str) -> list[str]:
        found = []
        for line in text.split("\n"):
            path, _, content = line.partition("\0")
            if path.endswith("/cgroup") and not content.startswith("0::"):
                continue
            if path.endswith("/stat"):
                content = self._stat(content)
            if content.startswith("sshd: "):
                content = content.rstrip("\0") + "\0"
            found.append(f"{self._paths(path)}\0{content}")
        return sorted(found)

    def _stat(self, content: str) -> str:
        head, _, tail = content.rpartition(") ")
        fields = tail.split(" ")
        ids = [self.names.pid(number) for number in fields[1:4]]
        assert fields[19].isdigit()
        return f"{head.partition('(')[2]} {fields[0].replace('R', 'S')} {ids} {len(fields)}"

    def _cgroups(self, text: str) -> list[str]:
        kept = [line for line in self._paths(text).split("\n") if not re.search(r"\0\d+:[a-z=]+:", line)]
        return sorted(kept)

    def _environ(self, text: str) -> list[str]:
        parts = self._paths(text).split("\0")
        return sorted(f"{path} {entry}" for path, entry in zip(parts[::2], parts[1::2], strict=False))

    def _health(self, text: str) -> str:
        return re.sub(r"^asked \d+$", "asked TICKS", text, flags=re.MULTILINE)

    def _space(self, text: str) -> list[tuple[int, str]]:
        rows = [line.split(" ") for line in text.splitlines()]
        return [(len(row), row[-1]) for row in rows if all(part.isdigit() for part in row[:-1])]

    def _exe(self, text: str) -> str:
        return self._paths(text)

    def _apps(self, text: str) -> str:
        return re.sub(r", (\d+), ", lambda found: f", {self.names.pid(found[1])}, ", text)

    def _sockets(self, text: str) -> list[str]:
        return sorted(self._last_pids(line) for line in text.split("\n"))

    _listeners = _sockets

    def _peer(self, text: str) -> list[str]:
        return sorted(map(self.names.pid, text.split()))

    def _last_pids(self, line: str) -> str:
        head, space, pids = line.rpartition(" ")
        return head + space + ",".join(self.names.pid(pid) for pid in pids.split(",")) if space else line

    def _sessions(self, text: str) -> bool:
        return all(re.fullmatch(r"\d+ \d+", line) for line in text.splitlines())

    def _asked(self, text: str) -> list[list[str]]:
        return [sorted(line.split()) for line in text.split("\n")]

    def _others(self, text: str) -> list[str]:
        return [*sorted(text.removesuffix("\n").split("\n\n")), str(text.endswith("\n"))]

    def _users(self, text: str) -> list[str]:
        return sorted(text.split("\n"))

    def _response(self, text: str) -> object:
        status, newline, body = text.partition("\n")
        try:
            said = json.loads(body)
        except ValueError:
            return text
        return status + newline, {k: v for k, v in said.items() if k not in ("id", "created")}

    def _journal(self, text: str) -> set[str]:
        lines = set()
        for line in text.replace("\r", "\n").split("\n"):
            for pattern, put in _LOG:
                line = pattern.sub(put, line)  # noqa: PLW2901
            lines |= set() if "GET /health" in line or ": Killing PID" in line else {line}
        return lines

    def _error(self, text: str) -> str:
        return re.sub(r"\b([0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})\b",
                      lambda found: self.names.identifier(found[1]), text)  # fmt: skip

    # ---- pieces ----

    def _paths(self, text: str) -> str:
        text = re.sub(r"/proc/(\d+)/", lambda found: f"/proc/{self.names.pid(found[1])}/", text)
        return re.sub(r"^(\d+) (nvidia\S*)$", lambda f: f"{self.names.pid(f[1])} {f[2]}", text, flags=re.M)

    def _pid_lines(self, text: str) -> str:
        return re.sub(r"^(\d+) (\w+)$", lambda f: f"{self.names.pid(f[1])} {f[2]}", text, flags=re.M)


def _rank(value: int, stamps: list[int]) -> int:
    return stamps.index(value)


def _lasting(value: object) -> object:
    """Without the lines of what only passes."""
    return (
        [line for line in value if not (isinstance(line, str) and PASSING in line)]
        if isinstance(value, list)
        else value
    )
