"""The kinds of processes that a seed plants: what each truly is, in the words of the table of design section 2.

A shape is what the world knows of a process at its birth. The checkers read it; whoever looks at the host sees only
what the helper prints of it. `table` says whose a process of that shape is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Home = Literal[
    "nowhere", "managed", "live-unit", "dead-unit", "kept-unit", "user-unit", "namesake", "docker", "podman", "pod",
    "lxc", "inner", "dead-docker", "open-session", "closed-session",
]  # fmt: skip
Mark = Literal["ours", "other", "none", "veiled"]
Guise = Literal["argv", "title", "renamed", "python", "trainer", "spoken", "bash", "exporter", "kept"]
Parent = Literal["init", "shell", "session-shell", "user-manager", "supervisor"]
Fate = Literal["easy", "deaf", "stopped", "stuck", "defunct"]

LIVE_HOMES = frozenset(
    {"live-unit", "user-unit", "namesake", "docker", "podman", "pod", "lxc", "inner", "open-session"}
)
ENGINES = frozenset({"argv", "title"})


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind. `home` is its cgroup, `mark` what its environment carries, `guise` its command line as it is shown.

    `own_user`: it runs as the unit's user. `parent` is who is above it. `serves`: its port generates or asks for a key.
    `fate`: how it takes a signal. `why` is the row of the table that decides.
    """

    kind: str
    why: str
    home: Home = "nowhere"
    mark: Mark = "none"
    guise: Guise = "title"
    own_user: bool = True
    parent: Parent = "init"
    serves: bool = False
    asks_key: bool = False
    fate: Fate = "easy"

    @property
    def attended(self) -> bool:
        """A living launcher that is neither PID 1 nor a user manager nor a shell without a session."""
        return self.parent in ("session-shell", "supervisor")


_PROVEN, _LIKELY = "our mark, and its unit not live", "an engine's, of the unit's user, and nobody attends it"

OURS: tuple[Shape, ...] = (
    Shape("worker of a dead launcher", _PROVEN, mark="ours"),
    Shape("worker under a live shell", _PROVEN, mark="ours", parent="shell"),
    Shape("worker under a shell of a live session", _PROVEN, mark="ours", parent="session-shell"),
    Shape("worker in the cgroup of a dead unit", _PROVEN, home="dead-unit", mark="ours"),
    Shape("worker with another title", _PROVEN, mark="ours", guise="renamed"),
    Shape("worker with another title under a supervisor", _PROVEN, mark="ours", guise="renamed", parent="supervisor"),
    Shape("worker that ignores TERM", _PROVEN, mark="ours", fate="deaf"),
    Shape("stopped worker", _PROVEN, mark="ours", fate="stopped"),
    Shape("stopped worker that ignores TERM", _PROVEN, mark="ours", fate="stopped", parent="shell"),
    Shape("worker in state D", _PROVEN, mark="ours", fate="stuck"),
    Shape("defunct worker under a live parent", "defunct: it holds nothing", home="managed", mark="ours",
          parent="supervisor", fate="defunct"),
    Shape("worker in a dead docker scope", _PROVEN, home="dead-docker", mark="ours"),
    Shape("worker of a removed container", _LIKELY, home="dead-docker"),
    Shape("worker whose environment cannot be read", "an input is missing", mark="veiled"),
    Shape("worker in its unit's own cgroup", "in a managed unit's cgroup, and the unit is not running", home="managed",
          guise="renamed"),
    Shape("server by hand, session closed", _LIKELY, home="closed-session", guise="argv"),
    Shape("server by hand that ignores TERM", _LIKELY, home="closed-session", guise="argv", fate="deaf"),
    Shape("server by hand under its user manager", _LIKELY, home="closed-session", guise="argv", parent="user-manager"),
    Shape("worker without marks", _LIKELY),
    Shape("worker without marks under a live shell", _LIKELY, parent="shell"),
    Shape("worker with another store's mark", _LIKELY, mark="other"),
    Shape("worker that a rule protects by command", "protected", mark="ours", guise="kept"),
    Shape("worker that a rule protects by unit", "protected", home="kept-unit", mark="ours"),
)  # fmt: skip

_UNIT, _SCOPE = "in the cgroup of another live unit", "in a live container's scope"
_SESSION, _SERVES = "in a login session with a living leader", "it serves"

FOREIGN: tuple[Shape, ...] = (
    Shape("trainer on the card", _SESSION, home="open-session", guise="trainer", own_user=False),
    Shape("python next to it", "everything else", guise="python"),
    Shape("trainer whose arguments name an engine", "everything else", guise="spoken"),
    Shape("another title and no mark", "everything else", guise="renamed", parent="shell"),
    Shape("same argv, other user", "another uid than the unit's", guise="argv", own_user=False),
    Shape("same title, other user, our marks", "another uid than the unit's", mark="ours", own_user=False),
    Shape("same argv in another unit", _UNIT, home="live-unit", guise="argv"),
    Shape("same argv in a user's unit", _UNIT, home="user-unit", guise="argv"),
    Shape("user's unit of the same name", _UNIT, home="namesake", guise="argv"),
    Shape("our worker, moved into another live unit", _UNIT, home="live-unit", mark="ours"),
    Shape("exporter on the card", _UNIT, home="live-unit", guise="exporter", own_user=False),
    Shape("engine in a docker container", _SCOPE, home="docker", guise="argv"),
    Shape("engine in a docker container with our marks", _SCOPE, home="docker", mark="ours"),
    Shape("engine in a podman container", _SCOPE, home="podman"),
    Shape("engine in a pod", _SCOPE, home="pod"),
    Shape("engine in an LXC container", _SCOPE, home="lxc", guise="argv"),
    Shape("unit of the same name in a container", _SCOPE, home="inner", guise="argv"),
    Shape("debug shell with our marks", _SESSION, home="open-session", mark="ours", guise="bash"),
    Shape("debugger with our marks", _SESSION, home="open-session", mark="ours", guise="argv"),
    Shape("tmux with our marks", _UNIT, home="user-unit", mark="ours", guise="bash"),
    Shape("server by hand in an open session", _SESSION, home="open-session", guise="argv"),
    Shape("server by hand that generates", _SERVES, home="closed-session", guise="argv", serves=True),
    Shape("server by hand that asks for a key", _SERVES, home="closed-session", guise="argv", serves=True,
          asks_key=True),
    Shape("worker with our marks that generates", _SERVES, mark="ours", guise="argv", serves=True),
    Shape("engine under a supervisor", "a living launcher", guise="argv", parent="supervisor"),
    Shape("engine under a shell of a live session", "a living launcher", parent="session-shell"),
)  # fmt: skip
