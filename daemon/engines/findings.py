"""One thing found wrong with a spec, refused or only worth a warning; and where in the manifest it stands.

Shared by `check` and the rule modules it calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from daemon.domain.errors import Problem
from daemon.domain.spec import Role, ServingSpec
from daemon.engines.arguments import Value, identity, spelled
from daemon.engines.catalogue import Flags, flags_of


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem; `refused` is False for what may well work."""

    problem: Problem
    refused: bool


def refuse(path: str, message: str, hint: str = "") -> Finding:
    """Something that cannot work, or must not."""
    return Finding(Problem(path, message, hint), refused=True)


def warn(path: str, message: str, hint: str = "") -> Finding:
    """Something a person should look at."""
    return Finding(Problem(path, message, hint), refused=False)


@dataclass(frozen=True, slots=True)
class Seat:
    """One role of a spec under check: its effective declaration, and paths back into the manifest."""

    spec: ServingSpec
    role: Role
    view: ServingSpec

    def path(self, field: str) -> str:
        """Dotted path of a field (`parallelism.tensor`, `args.page-size`) where it was really written."""
        if self.role == "server" or self.spec.roles is None:
            return f"spec.{field}"
        top, _, rest = field.partition(".")
        override = self.spec.roles[self.role].model_dump(by_alias=True, exclude_none=True)
        own = rest in override[top] if top in ("args", "env") else top in override
        return f"spec.roles.{self.role}.{field}" if own or top == "bootstrapPort" else f"spec.{field}"

    @property
    def flags(self) -> Flags | None:
        """The flags of what this role starts; None for a custom command."""
        if self.view.engine.name == "custom":
            return None
        if self.role == "router":
            return flags_of("sglang-router", None)
        return flags_of(self.view.engine.name, self.view.engine.version)

    def given(self, *spellings: str) -> tuple[str, Value] | None:
        """Key and value of the entry in `args` that is one of these flags, in any spelling."""
        flags = self.flags
        if flags is None:
            return None
        wanted = {identity(flags, spelling) for spelling in spellings}
        return next(((n, v) for n, v in self.view.args.items() if identity(flags, spelled(n)) in wanted), None)

    def number(self, declared: int | None, *spellings: str) -> int | None:
        """A number as the engine will get it: from `args`, which have the last word, else as declared."""
        entry = self.given(*spellings)
        if entry is None:
            return declared
        text = str(entry[1])
        return int(text) if text.isdecimal() else None


def seats(spec: ServingSpec) -> list[Seat]:
    """All roles of a spec."""
    return [Seat(spec, role, spec.role_view(role)) for role in spec.role_names()]
