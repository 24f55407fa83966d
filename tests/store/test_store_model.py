"""Any order of puts, deletes, ends and reopenings, against a model of a few dictionaries."""

from __future__ import annotations

import asyncio
import copy
import shutil
import tempfile
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from daemon.domain.errors import Conflict, NotFound
from daemon.domain.status import Condition, Reason
from daemon.store import Kind, Store
from tests.store.times import at

kinds = st.sampled_from(["Host", "ServingSpec"])
names = st.sampled_from(["a", "b", "c"])
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
specs = st.dictionaries(st.sampled_from(["x", "y"]), values, max_size=2)
labels = st.dictionaries(st.sampled_from(["l", "m"]), st.sampled_from(["1", "2"]), max_size=2)
truths = st.sampled_from(["True", "False", "Unknown"])


@dataclass
class Expected:
    """One object as it must be; `spec` is compared by `repr`, since 1 == 1.0 == True in Python and not here."""

    uid: str
    spec: dict[str, Any]
    labels: dict[str, str]
    generation: int = 1
    terminating: bool = False
    ready: tuple[str, float] | None = None


@dataclass
class Model:
    """All that a store must remember."""

    objects: dict[tuple[str, str], Expected] = field(default_factory=dict)
    history: dict[tuple[str, str], list[tuple[str, int, str]]] = field(default_factory=dict)
    stones: list[str] = field(default_factory=list)
    version: int = 0


def text(value: object) -> str:
    """Equal for equal JSON: keys in order, types told apart."""
    match value:
        case dict():
            return "{" + ",".join(f"{key!r}:{text(value[key])}" for key in sorted(value)) + "}"
        case list():
            return "[" + ",".join(map(text, value)) + "]"
        case _:
            return repr(value)


class StoreMachine(RuleBasedStateMachine):
    """The store against the model."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp())
        self.model = Model()
        self.clock = 0.0
        self.opened: AbstractAsyncContextManager[Store]
        self.store: Store

    @initialize()
    def open(self) -> None:
        self.opened = Store.open(self.folder / "stoker.db")
        self.store = self.runner.run(self.opened.__aenter__())

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.runner.run(self.opened.__aexit__(None, None, None))
        self.runner.close()
        shutil.rmtree(self.folder)

    @rule()
    def reopen(self) -> None:
        uid = self.store.uid
        self.runner.run(self.opened.__aexit__(None, None, None))
        self.open()
        assert self.store.uid == uid

    @rule(kind=kinds, name=names, spec=specs, labels=labels)
    def put(self, kind: Kind, name: str, spec: dict[str, Any], labels: dict[str, str]) -> None:
        self.clock += 1
        old = self.model.objects.get((kind, name))
        put = self.store.put(kind, name, copy.deepcopy(spec), labels, actor="ann", now=at(self.clock))
        if old is not None and old.terminating:
            try:
                self.runner.run(put)
            except Conflict:
                return
            raise AssertionError("a terminating object was changed")
        made = self.runner.run(put)
        if old is None:
            assert made.outcome == "created"
            new = self.model.objects[kind, name] = Expected(made.object.uid, spec, labels)
            self.remember(kind, name, new)
        elif text(old.spec) != text(spec):
            assert made.outcome == "configured"
            old.spec, old.labels, old.generation = spec, labels, old.generation + 1
            self.remember(kind, name, old)
        else:
            assert made.outcome == ("unchanged" if old.labels == labels else "configured")
            old.labels = labels
        if made.outcome != "unchanged":
            assert made.object.resource_version > self.model.version
            self.model.version = made.object.resource_version

    def remember(self, kind: str, name: str, new: Expected) -> None:
        self.model.history.setdefault((kind, name), []).append((new.uid, new.generation, text(new.spec)))

    @rule(kind=kinds, name=names)
    def delete(self, kind: Kind, name: str) -> None:
        self.clock += 1
        old = self.model.objects.get((kind, name))
        if old is None:
            try:
                self.runner.run(self.store.delete(kind, name, at(self.clock)))
            except NotFound:
                return
            raise AssertionError("nothing was deleted")
        gone = self.runner.run(self.store.delete(kind, name, at(self.clock)))
        assert (gone.uid, gone.deleted_at is not None) == (old.uid, True)
        old.terminating = True
        self.model.version = max(self.model.version, gone.resource_version)

    @precondition(lambda self: any(one.terminating for one in self.model.objects.values()))
    @rule(which=st.integers(0, 5))
    def finish(self, which: int) -> None:
        self.clock += 1
        ending = [key for key, one in sorted(self.model.objects.items()) if one.terminating]
        kind, name = ending[which % len(ending)]
        old = self.model.objects.pop((kind, name))
        assert kind in {"Host", "ServingSpec"}
        stone = self.runner.run(self.store.finish_delete(kind, old.uid, now=at(self.clock)))  # type: ignore[arg-type]
        assert (stone.name, text(stone.spec), stone.generation) == (name, text(old.spec), old.generation)
        self.model.stones.append(old.uid)

    @precondition(lambda self: self.model.objects)
    @rule(which=st.integers(0, 5), truth=truths, message=st.sampled_from(["", "m"]))
    def say(self, which: int, truth: Any, message: str) -> None:
        self.clock += 1
        (kind, _), one = sorted(self.model.objects.items())[which % len(self.model.objects)]
        said = [Condition("Ready", truth, Reason.OK, message)]
        self.runner.run(self.store.put_status(kind, one.uid, {}, said, at(self.clock)))  # type: ignore[arg-type]
        if one.ready is None or one.ready[0] != truth:
            one.ready = (truth, self.clock)

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "store"):
            return
        self.runner.run(self.check())

    async def check(self) -> None:
        for kind in ("Host", "ServingSpec"):
            found = {one.name: one for one in await self.store.list(kind)}
            assert set(found) == {name for of, name in self.model.objects if of == kind}
            for name, one in found.items():
                want = self.model.objects[kind, name]
                assert (one.uid, one.generation, text(one.spec)) == (want.uid, want.generation, text(want.spec))
                assert (one.labels, one.deleted_at is not None) == (want.labels, want.terminating)
                status = await self.store.status(one.kind, one.uid)
                ready = status and status.condition("Ready")
                assert (ready and (ready.status, ready.last_transition_time)) == (
                    want.ready and (want.ready[0], at(want.ready[1]))
                )
        for (kind, name), want_history in self.model.history.items():
            kept = await self.store.history(kind, name)  # type: ignore[arg-type]
            assert [(one.uid, one.generation, text(one.spec)) for one in kept] == want_history
        assert {stone.uid for stone in await self.store.tombstones()} == set(self.model.stones)


StoreMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestStoreAgainstModel = StoreMachine.TestCase
