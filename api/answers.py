"""What the routes answer with, as models: for the OpenAPI document, and for the tests that hold every answer to them.

The routes themselves build plain objects; nothing is checked against these at run time.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from api.schemas import Kind
from daemon.domain.host import HostSpec
from daemon.domain.spec import ServingSpec
from daemon.domain.text import Model


class Place(Model):
    """One wrong place."""

    path: str
    message: str
    hint: str | None = None


class ProblemAnswer(Model):
    """A refusal, as RFC 9457 has it; `errors` name every wrong place of a document."""

    type: str
    title: str
    status: int
    detail: str
    hint: str | None = None
    errors: list[Place] | None = None


class ShownMetadata(Model):
    """Name and labels as declared; the rest is the daemon's."""

    name: str
    labels: dict[str, str]
    uid: str
    generation: int
    resource_version: int
    creation_timestamp: str
    update_timestamp: str
    deletion_timestamp: str | None = None


class ShownCondition(Model):
    """What is so, since when, and why."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    observed_generation: int
    last_transition_time: str


class Status(Model):
    """What the daemon last said: conditions, and of a host its plan and cards, of a spec its instances and drift."""

    model_config = ConfigDict(extra="allow")

    conditions: list[ShownCondition]
    observed_generation: int = 0


class ShownObject(Model):
    """A declared object with its status; `warnings` only in the answer to a PUT."""

    api_version: Literal["stoker/v1"]
    kind: Kind
    metadata: ShownMetadata
    spec: HostSpec | ServingSpec
    status: Status
    warnings: list[Place] | None = None


class ShownHost(ShownObject):
    """A Host with its status."""

    kind: Literal["Host"]
    spec: HostSpec


class ShownSpec(ShownObject):
    """A ServingSpec with its status."""

    kind: Literal["ServingSpec"]
    spec: ServingSpec


class HostList(Model):
    """All hosts, by name."""

    api_version: Literal["stoker/v1"]
    kind: Literal["HostList"]
    items: list[ShownHost]


class ServingSpecList(Model):
    """All specs, by name."""

    api_version: Literal["stoker/v1"]
    kind: Literal["ServingSpecList"]
    items: list[ShownSpec]


class Left(Model):
    """What an abandoned spec had on a host."""

    host: str
    unit: str
    role: str
    path: str


class Abandoned(Model):
    """The answer to a deletion with `abandon`."""

    abandoned: str
    left: list[Left]


class Revision(Model):
    """One generation as it was declared."""

    uid: str
    generation: int
    actor: str
    timestamp: str
    spec: dict[str, Any]


class Deletion(Model):
    """How an object of that name ended."""

    uid: str
    generation: int
    timestamp: str
    abandoned: bool
    units: list[str]
    hosts: list[str]
    leftovers: dict[str, Any]


class History(Model):
    """Every generation, oldest first."""

    api_version: Literal["stoker/v1"]
    kind: Literal["History"]
    revisions: list[Revision]
    deletions: list[Deletion]


class ShownEvent(Model):
    """What happened, how often, and what it was concluded from."""

    id: int
    kind: str
    name: str
    severity: str
    reason: str
    message: str
    action: str
    result: str
    evidence: str
    count: int
    first_timestamp: str
    last_timestamp: str


class EventList(Model):
    """The events asked for."""

    api_version: Literal["stoker/v1"]
    kind: Literal["EventList"]
    items: list[ShownEvent]


class Paused(Model):
    """Whether everything is paused."""

    paused: bool
    by: str | None = None
    since: str | None = None


class Version(Model):
    """Whose answers these are."""

    version: str
    store: str


class ShownCheck(Model):
    """One thing a host needs; `ok` null: it could not be looked at."""

    name: str
    ok: bool | None
    found: str
    remedy: str


class Checks(Model):
    """Each thing a host needs."""

    host: str
    checks: list[ShownCheck]


class ShownFence(Model):
    """Which store's daemon, and which run of it, may change a host."""

    store: str
    epoch: int
    run: str


class TakenOver(Model):
    """The host's fence as it was, null where there was none, and as it is."""

    host: str
    before: ShownFence | None
    now: ShownFence


class Why(Model):
    """What is not known, and why."""

    what: str
    reason: str
    detail: str


class CardMemory(Model):
    """A card's memory at the last look."""

    index: int
    uuid: str
    memory_used_mib: int | None
    memory_total_mib: int | None


class HeldCard(Model):
    """What a process holds of a card."""

    index: int
    uuid: str
    memory_mib: int | None


class Parent(Model):
    """A process's parent; `command` null where it was not seen."""

    pid: int
    command: str | None


class Stray(Model):
    """One process that holds something, whose it is by what proof, and what is done about it."""

    pid: int
    start_ticks: int
    owner: str
    proof: str
    unit: str
    cgroup: str | None
    gpus: list[HeldCard]
    ports: list[int]
    user: str | None
    uid: int
    state: str
    comm: str
    command: str
    parent: Parent
    started_at: str | None
    first_seen_at: str | None = None
    term_at: str | None = None
    kill_at: str | None = None
    verdict: str
    detail: str
    asked_by: str | None


class UnseenHolder(Model):
    """A row of the driver that names no process there."""

    gpu: int | None
    uuid: str
    pid: int
    memory_mib: int | None


class StrayList(Model):
    """Who holds what on a host, as last seen; null is not known, an empty list is nobody."""

    api_version: Literal["stoker/v1"]
    kind: Literal["StrayList"]
    host: str
    boot_id: str | None
    observed_at: str | None
    withheld: str | None
    unknown: list[Why]
    gpus: list[CardMemory] | None
    items: list[Stray] | None
    unseen: list[UnseenHolder] | None


class Identity(Model):
    """A process that is being cleared from now on."""

    pid: int
    start_ticks: int


class RefusedProcess(Identity):
    """A process that is not."""

    reason: str
    detail: str


class Cleared(Model):
    """What became of a person's word."""

    host: str
    accepted: list[Identity]
    refused: list[RefusedProcess]


class Recording(Model):
    """One look, section by section: its format is what `stoker record --schema` prints."""

    model_config = ConfigDict(extra="allow", alias_generator=to_camel)

    recording: Literal["stoker/v1"]
    host: str
    sections: dict[str, Any] = Field(examples=[{"hold": {"command": "cat /etc/stoker/hold", "exitStatus": 1}}])
