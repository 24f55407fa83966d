"""Law 5 by drift: the lowest layer first, a restart only for another launch, and hands off what comes back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.domain.actions import PutUnit, SetAside, UnitVerb
from daemon.domain.host import Gpus
from daemon.domain.observation import DropIn, GpuApp, Loaded, Observation, Unit, Unknown
from daemon.domain.status import Reason
from daemon.engines.effective import Claim, claims, question
from daemon.engines.unit import parse_unit, setting_keys, with_unset
from daemon.planner.conditions import spec_conditions
from daemon.planner.decision import CONTESTED_AFTER, DROPINS_AFTER
from daemon.planner.drift import _argv_difference, drift_of
from daemon.planner.dropins import foreign
from daemon.planner.environment import WATCHED
from daemon.planner.facts import inventory_drift
from daemon.planner.plan import Plan, decide
from daemon.planner.states import instance_state
from daemon.planner.world import Desired, EffectiveFact
from tests.planner.box import UUIDS, Box
from tests.planner.driving import Driver, spec

UNIT = "stoker-m.server.service"
FOLDER = f"/etc/systemd/system/{UNIT}.d"
DROPIN = f"{FOLDER}/override.conf"

pytestmark = pytest.mark.fleet

Move = Callable[[Driver], None]


def settled(**more: object) -> Driver:
    driver = Driver(Box(), {"m": spec(**more)}, counts=True)  # type: ignore[arg-type]
    driver.settle()
    return driver


def rows(plan: Plan) -> list[str]:
    return [d.key for d in plan.drift]


def done(plan: Plan) -> list[str]:
    return [a.verb if isinstance(a, UnitVerb) else type(a).__name__ for a in plan.actions]


def file_of(driver: Driver) -> str:
    text = driver.box.units[UNIT].file
    assert text is not None
    return text


def edit(driver: Driver) -> None:
    driver.box.units[UNIT].file = file_of(driver).replace("/models/m", "/models/other")
    driver.box.units[UNIT].reload = True


def edit_and_load(driver: Driver) -> None:
    edit(driver)
    driver.box.units[UNIT].load()


def edit_policy(driver: Driver) -> None:
    driver.box.units[UNIT].file = file_of(driver).replace("Restart=always", "Restart=no")
    driver.box.units[UNIT].load()


def disable(driver: Driver) -> None:
    driver.box.units[UNIT].enabled = False


def add(driver: Driver) -> None:
    driver.box.units[UNIT].dropins[DROPIN] = "[Service]\nEnvironment=NCCL_DEBUG=INFO\n"
    driver.box.units[UNIT].reload = True


def add_and_load(driver: Driver) -> None:
    add(driver)
    driver.box.units[UNIT].load()


def add_and_restart(driver: Driver) -> None:
    add_and_load(driver)
    driver.box.restart_by_hand(UNIT)
    driver.box.step()


def set_environment(driver: Driver) -> None:
    driver.box.manager["NCCL_ALGO"] = "Ring"


def set_environment_and_restart(driver: Driver) -> None:
    driver.box.manager["NCCL_ALGO"] = "Ring"
    driver.box.restart_by_hand(UNIT)
    driver.box.step()


def other_flags(driver: Driver) -> None:
    """Restarted with other flags, and the file put back."""
    text = file_of(driver)
    edit_and_load(driver)
    driver.box.restart_by_hand(UNIT)
    driver.box.step()
    driver.box.units[UNIT].file = text
    driver.box.units[UNIT].load()


WITHOUT = {
    edit: ["file argv", "loaded reload"],
    edit_and_load: ["file argv", "loaded argv"],
    edit_policy: ["file text"],
    disable: ["loaded enabled"],
    add: ["file dropin.override.conf", "loaded reload"],
    add_and_load: ["file dropin.override.conf", "loaded env.NCCL_DEBUG"],
    set_environment: ["loaded env.NCCL_ALGO"],
}
WITH = {
    add_and_restart: ["file dropin.override.conf", "loaded env.NCCL_DEBUG", "running env.NCCL_DEBUG"],
    set_environment_and_restart: ["loaded env.NCCL_ALGO", "running env.NCCL_ALGO"],
    other_flags: ["running argv"],
}


@pytest.mark.parametrize(("move", "shown"), WITHOUT.items())
def test_what_no_process_has_is_shown_and_corrected_without_a_restart(move: Move, shown: list[str]) -> None:
    driver = settled()
    before = driver.box.units[UNIT].invocation
    move(driver)
    plan = driver.turn()
    assert rows(plan) == shown
    assert driver.settle().drift == ()
    assert (driver.box.units[UNIT].invocation, driver.box.restarts) == (before, 0)


@pytest.mark.parametrize(("move", "shown"), WITH.items())
def test_what_the_process_has_is_shown_and_costs_one_restart(move: Move, shown: list[str]) -> None:
    driver = settled()
    move(driver)
    assert rows(driver.turn()) == shown
    plan = driver.settle()
    assert (plan.drift, plan.actions, driver.box.restarts) == ((), (), 1)
    assert driver.serves("m")


@pytest.mark.parametrize("move", [move for move in {**WITHOUT, **WITH} if move not in (set_environment,)])
def test_what_comes_back_after_three_corrections_is_contested_and_left_alone(move: Move) -> None:
    driver = settled()
    for turn in range(CONTESTED_AFTER):
        if "NCCL_ALGO" in driver.box.manager:  # our own refusal stands in the way: somebody took it out
            driver.box.units[UNIT].file = file_of(driver).replace("UnsetEnvironment=NCCL_ALGO\n", "")
            driver.box.units[UNIT].load()
        move(driver)
        assert driver.turn().actions, turn
        assert driver.settle().drift == ()
    if "NCCL_ALGO" in driver.box.manager:
        driver.box.units[UNIT].file = file_of(driver).replace("UnsetEnvironment=NCCL_ALGO\n", "")
        driver.box.units[UNIT].load()
    move(driver)
    restarts = driver.box.restarts
    for _ in range(3):
        plan = driver.turn()
        assert plan.actions == ()
        assert plan.drift
        assert plan.blocked[UNIT].reason is Reason.DRIFT_CONTESTED
        assert "came back 3 times" in plan.blocked[UNIT].detail
        driver.die()  # the count is the store's
    assert driver.box.restarts == restarts
    world = driver.world()
    state = instance_state(world.desired[0], decide(world), world)
    drifted = next(c for c in spec_conditions(1, [state]) if c.type == "Drifted")
    assert (drifted.status, drifted.reason) == ("True", Reason.DRIFT_CONTESTED)
    driver.returned.clear()  # as a new generation of the spec does
    assert driver.settle().drift == ()


@settings(max_examples=120, deadline=None)
@given(st.lists(st.sampled_from([*WITHOUT, *WITH]), max_size=12), st.integers(0, 2))
def test_nothing_is_restarted_that_runs_as_declared_and_no_drift_is_fought_more_than_three_times(
    moves: list[Move], turns: int
) -> None:
    driver = settled()
    for move in moves:
        move(driver)
        for _ in range(turns + 1):
            world = driver.world()
            for action in decide(world).actions:
                if isinstance(action, UnitVerb) and action.verb == "restart":
                    main = driver.box.procs[driver.box.units[UNIT].main]
                    launch = world.desired[0].launch
                    env = {k: v for k, v in main.env if not k.startswith("STOKER_")}
                    assert (main.argv, env) != (launch.argv, dict(launch.env))
            driver.turn()
    for _ in range(8):
        plan = driver.turn()
    assert plan.actions == ()
    assert all(count <= CONTESTED_AFTER for count in driver.returned.values())
    assert driver.box.restarts <= sum(move in WITH for move in moves)
    if plan.drift:
        assert plan.blocked[UNIT].reason is Reason.DRIFT_CONTESTED


names = st.from_regex(r"\A[A-Z_][A-Z0-9_]{0,12}\Z").filter(lambda name: not name.startswith((*WATCHED, "STOKER_")))


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(names, st.just("x"), max_size=5))
def test_variables_that_no_engine_reads_are_nobodys_drift(variables: dict[str, str]) -> None:
    driver = settled()
    driver.box.manager.update({"LANG": "C", "PATH": "/bin", **variables})
    driver.box.restart_by_hand(UNIT)
    driver.box.step()
    plan = driver.turn()
    assert (plan.actions, plan.drift) == ((), ())


def test_what_the_host_gave_from_the_start_is_its_own_also_to_an_upgraded_daemon() -> None:
    driver = Driver(Box(manager={"LD_LIBRARY_PATH": "/opt/cuda/lib64"}), {"m": spec()})
    driver.settle()
    record = driver.records["m"]
    assert record.inherited == ("LD_LIBRARY_PATH",)
    driver.records["m"] = replace(record, inherited=None)  # a store of before
    for _ in range(3):
        plan = driver.turn()
        assert (plan.actions, plan.drift) == ((), ())
    assert driver.box.restarts == 0
    assert "UnsetEnvironment" not in file_of(driver)


def test_a_variable_that_a_launcher_sets_by_itself_is_not_restarted_away() -> None:
    driver = settled()
    driver.specs["m"] = spec(contextLength=4096)
    driver.turn()
    assert driver.box.restarts == 1
    main = driver.box.procs[driver.box.units[UNIT].main]
    main.env = (*main.env, ("LD_LIBRARY_PATH", "/opt/venv/lib"))
    for _ in range(4):
        assert driver.turn().actions == ()
    driver.box.crash(UNIT)
    driver.box.step()
    main = driver.box.procs[driver.box.units[UNIT].main]
    main.env = (*main.env, ("LD_LIBRARY_PATH", "/opt/venv/lib"))
    assert driver.settle().drift == ()
    assert driver.box.restarts == 1


def seen(driver: Driver, change: Callable[[Unit], Unit] = lambda unit: unit, **more: object) -> Observation:
    look = driver.box.look(driver.now_s, (UNIT,))
    assert isinstance(look.units, tuple)
    units = tuple(change(unit) if unit.name == UNIT else unit for unit in look.units)
    return replace(look, units=units, **more)  # type: ignore[arg-type]


def test_an_unknown_environment_of_systemd_corrects_nothing() -> None:
    driver = settled()
    set_environment_and_restart(driver)
    look = seen(driver, inherited=Unknown(Reason.TOOL_TIMED_OUT))
    plan = decide(driver.world(look))
    assert plan.actions == ()
    assert rows(plan) == ["running env.NCCL_ALGO"]
    assert plan.blocked[UNIT].reason is Reason.TOOL_TIMED_OUT


def test_dropins_that_could_not_be_listed_are_no_absent_ones() -> None:
    driver = settled()
    world = driver.world(seen(driver, lambda unit: replace(unit, dropins=None)))
    plan = decide(world)
    assert plan.actions == ()
    state = instance_state(world.desired[0], plan, world)
    drifted = next(c for c in spec_conditions(1, [state]) if c.type == "Drifted")
    assert (drifted.status, drifted.reason) == ("Unknown", Reason.LOOK_INCOMPLETE)


def test_a_masked_unit_that_runs_is_left_and_still_asked_to_generate() -> None:
    driver = settled()
    for change in (
        lambda u: replace(u, load_state="masked", file=replace(u.file, text=None, sha256=None, link=True)),
        lambda u: replace(u, file=replace(u.file, text=None, sha256=None, link=True)),
    ):
        driver.probes.clear()
        plan = decide(driver.world(seen(driver, change)))
        assert (plan.actions, rows(plan)) == ((), ["loaded masked"])
        assert plan.blocked[UNIT].reason is Reason.UNIT_MASKED
        assert [wanted.unit for wanted in plan.probes] == [UNIT]


def test_a_dropin_for_many_units_is_told_and_never_moved() -> None:
    driver = settled()

    def everywhere(unit: Unit) -> Unit:
        assert isinstance(unit.loaded, Loaded)
        loaded = replace(unit.loaded, env=(*unit.loaded.env, ("NCCL_DEBUG", "INFO")))
        return replace(unit, loaded=loaded, dropin_paths=("/etc/systemd/system/stoker-.service.d/site.conf",))

    plan = decide(driver.world(seen(driver, everywhere)))
    assert plan.actions == ()
    assert "stoker-.service.d/site.conf" in plan.blocked[UNIT].detail


def test_a_unit_that_a_dropin_made_bad_and_that_is_down_is_mended_and_started() -> None:
    driver = settled()
    unit = driver.box.units[UNIT]
    unit.dropins[DROPIN] = "[Service]\nExecStart=/bin/second\n"
    driver.box._end(UNIT, unit, "failed")
    look = seen(driver, lambda u: replace(u, load_state="bad-setting", loaded=None, dropin_paths=(DROPIN,)))
    assert done(decide(driver.world(look))) == ["SetAside", "start"]


def test_both_of_two_dropins_of_one_name_are_set_aside() -> None:
    driver = settled()
    unit = driver.box.units[UNIT]
    for folder in (FOLDER, f"/run/systemd/system/{UNIT}.d"):
        unit.dropins[f"{folder}/override.conf"] = f"[Service]\nNice=5\n# {folder}\n"
    plan = driver.turn()
    assert sorted(a.path for a in plan.actions if isinstance(a, SetAside)) == sorted(
        [DROPIN, f"/run/systemd/system/{UNIT}.d/override.conf"]
    )


def test_a_comment_alone_is_no_drift() -> None:
    driver = settled()
    driver.box.units[UNIT].dropins[DROPIN] = "# [Service]\n# Nice=5\n\n[Service]\n"
    assert driver.turn().actions == ()
    assert setting_keys("[Service]\n; A=1\nNice = 5\n[Unit]\nAfter=x\n") == {"Service.Nice", "Unit.After"}


def adopted() -> Desired:
    found = settled().world().desired[0]
    return replace(found, adopted=True, path=f"{FOLDER}/50-stoker.conf")


@pytest.mark.parametrize(
    ("text", "differs", "goes"),
    [
        ("[Service]\nExecStart=\nExecStart=/bin/other\n", True, True),
        ("[Service]\nExecStart=\nExecStart=/bin/other\n", False, False),
        ("[Service]\nLimitMEMLOCK=infinity\n", True, False),
    ],
)
def test_of_an_adopted_units_own_dropins_only_one_that_changes_the_launch_goes(
    text: str, differs: bool, goes: bool
) -> None:
    driver = settled()
    unit = driver.box.look(0.0, (UNIT,)).unit(UNIT)
    assert isinstance(unit, Unit)
    ours = DropIn(f"{FOLDER}/50-stoker.conf", "[Service]\nUser=x\n", "0")
    theirs = DropIn(f"{FOLDER}/10-site.conf", text, hashlib.sha256(text.encode()).hexdigest())
    found = foreign(adopted(), replace(unit, dropins=(ours, theirs)), differs)
    assert found == ((theirs,) if goes else ())


def test_the_refusal_of_a_variable_is_read_back_and_stands_in_the_service_section() -> None:
    driver = settled()
    text = with_unset(file_of(driver), ["NCCL_ALGO", "LD_PRELOAD"])
    assert "[Service]\nUnsetEnvironment=LD_PRELOAD NCCL_ALGO\nType=exec\n" in text
    assert parse_unit(text).unset == {"NCCL_ALGO", "LD_PRELOAD"}
    assert with_unset(file_of(driver), []) == file_of(driver)


def test_a_text_written_with_a_refusal_is_no_drift_when_the_variable_is_gone_again() -> None:
    driver = settled()
    set_environment(driver)
    driver.settle()
    driver.box.manager.clear()
    plan = driver.turn()
    assert (plan.actions, plan.drift) == ((), ())
    driver.specs["m"] = spec(stop={"timeout": "90s"})
    plan = driver.turn()
    assert [type(a) for a in plan.actions] == [PutUnit]
    assert "UnsetEnvironment" not in file_of(driver)


# ---- layers that are only reported ----


def proven(driver: Driver) -> None:
    driver.records["m"] = replace(driver.records["m"], ready_invocation=driver.box.units[UNIT].invocation)


def test_cards_that_it_holds_beyond_its_own_and_cards_it_leaves_unused_are_told_and_nothing_is_done() -> None:
    driver = settled()
    main = driver.box.procs[driver.box.units[UNIT].main]
    main.gpus = {UUIDS[0]: 20_000, UUIDS[3]: 9_000}
    assert [(d.key, d.observed) for d in driver.turn().drift] == [("placement gpu.3", "held")]
    proven(driver)
    plan = driver.turn()
    assert [(d.key, d.observed) for d in plan.drift] == [("placement gpu.1", "not held"), ("placement gpu.3", "held")]
    assert plan.actions == ()


def test_cards_are_not_called_unused_while_rows_name_nobody_here() -> None:
    driver = settled()
    proven(driver)
    driver.box.procs[driver.box.units[UNIT].main].gpus = {UUIDS[0]: 20_000}
    look = seen(driver)
    assert isinstance(look.apps, tuple)
    look = replace(look, apps=(*look.apps, GpuApp(UUIDS[1], 4_000_000, "python", 20_000)))
    assert decide(driver.world(look)).drift == ()


def test_what_the_engine_says_otherwise_is_drift_of_its_own_invocation_only() -> None:
    driver = settled()
    fact = EffectiveFact(
        driver.box.units[UNIT].invocation,
        (Claim("contextLength", "4096", "2048"), Claim("model.path", "/m", "/m")),
    )
    plan = decide(replace(driver.world(), effective={UNIT: fact}))
    assert [(d.key, d.declared, d.observed) for d in plan.drift] == [("effective contextLength", "4096", "2048")]
    assert plan.actions == ()
    old = replace(fact, invocation="f" * 32)
    assert decide(replace(driver.world(), effective={UNIT: old})).drift == ()


@pytest.mark.parametrize(
    ("engine", "body", "told"),
    [
        ("sglang", b'{"context_length": 2048, "api_key": "k", "model_path": "/models/m", "tp_size": 2}',
         {"contextLength": ("4096", "2048")}),
        ("vllm", b'{"data": [{"id": "other", "root": "/models/m", "max_model_len": 4096}]}',
         {"model.servedName": ("/models/m", "other")}),
        ("sglang", b"{}", {}),
    ],
)  # fmt: skip
def test_engines_tell_what_is_in_effect(engine: str, body: bytes, told: dict[str, tuple[str, str]]) -> None:
    view = spec(contextLength=4096, engine={"name": engine, "python": "/opt/venv/bin/python"})
    found = claims(view, 200, body)
    assert isinstance(found, tuple)
    assert {c.field: (c.declared, c.observed) for c in found if c.declared != c.observed} == told
    assert "api_key" not in str(found)


@pytest.mark.parametrize(("status", "body"), [(401, b"{}"), (404, b"{}"), (200, b"[]"), (200, b'{"data": []}')])
def test_an_engine_that_does_not_tell_is_unknown(status: int, body: bytes) -> None:
    view = spec(engine={"name": "vllm", "python": "/opt/venv/bin/python"})
    assert isinstance(claims(view, status, body), Unknown)
    assert question(view, "router") is None


def test_a_flag_in_args_is_the_last_word_and_no_drift() -> None:
    view = spec(contextLength=4096, args={"context-length": "2048"})
    found = claims(view, 200, b'{"context_length": 2048}')
    assert found == ()


def test_the_hosts_cards_are_held_against_number_product_and_first_sight() -> None:
    look = Box(cards=3).look(0.0, ())
    known = (UUIDS[0], UUIDS[1], UUIDS[7])
    found = inventory_drift(Gpus(count=4, product="NVIDIA H100"), known, look)
    assert [d.key for d in found] == [
        "inventory gpus", "inventory gpu.0.product", "inventory gpu.1.product", "inventory gpu.2.product",
        f"inventory uuid.{UUIDS[7]}", f"inventory uuid.{UUIDS[2]}",
    ]  # fmt: skip
    assert inventory_drift(None, (), look) == ()
    hidden = replace(look, gpus=Unknown(Reason.TOOL_TIMED_OUT))
    assert inventory_drift(Gpus(count=4), known, hidden) == ()


@pytest.mark.parametrize(
    ("declared", "observed", "told"),
    [
        ("p --tp 4 --context 16384 --mem 0.85", "p --tp 4 --mem 0.85", ("--context 16384", "(nothing)")),
        ("p --tp 4 --mem 0.85", "p --tp 4 --mem 0.6", ("--mem 0.85", "--mem 0.6")),
        ("p --mem 1", "p --mem 1 --seed 7", ("(nothing)", "--seed 7")),
        ("p --api-key one", "p --api-key two", ("--api-key [redacted]", "--api-key [redacted]")),
        ("p --mem 1", "", ("p --mem 1", "(nothing)")),
    ],
)
def test_of_two_command_lines_only_what_differs_is_told(declared: str, observed: str, told: tuple[str, str]) -> None:
    assert _argv_difference(tuple(declared.split()), tuple(observed.split())) == told


@pytest.mark.parametrize(
    "text",
    [
        '[Service]\nEnvironment="DB_PASSWORD=correct horse battery staple"\n',
        "[Service]\nEnvironment=WANDB_KEY=correct NCCL_DEBUG=battery\n",
        "[Service]\nEnvironment=HF_TOKEN=\\\ncorrect\n",
        "[Service]\nSetCredential=hf:correct battery\n",
        "[Service]\nEnvironment=MYSQL_PWD=correct\n",
    ],
)
def test_the_excerpt_of_a_dropin_tells_no_secret(text: str) -> None:
    driver = settled()
    driver.box.units[UNIT].dropins[DROPIN] = text
    driver.box.units[UNIT].load()
    told = [action.excerpt for action in decide(driver.world()).actions if isinstance(action, SetAside)]
    assert told
    assert "[Service]" in told[0]
    assert "correct" not in told[0]
    assert "battery" not in told[0]


def test_drop_ins_of_ever_new_names_are_left_alone_too_in_the_end() -> None:
    driver = settled()
    for number in range(20):
        driver.box.units[UNIT].dropins[f"{FOLDER}/override-{number}.conf"] = "[Service]\nNice=5\n"
        plan = driver.turn()
        if not plan.actions:
            break
    assert number == DROPINS_AFTER
    assert plan.blocked[UNIT].reason is Reason.DRIFT_CONTESTED
    assert "drop-ins were set aside" in plan.blocked[UNIT].detail


def test_adoption_leaves_a_drop_in_alone_that_our_launch_outranks() -> None:
    """What a person's drop-ins do to our launch is known once our own drop-in is loaded."""
    driver = settled()
    unit = driver.box.look(0.0, (UNIT,)).unit(UNIT)
    assert isinstance(unit, Unit)
    theirs = "[Service]\nEnvironmentFile=/etc/default/hf-token\n"
    token = DropIn(f"{FOLDER}/10-token.conf", theirs, hashlib.sha256(theirs.encode()).hexdigest())
    person = Loaded(("/usr/bin/python3", "-m", "x"), (), "", "")
    assert unit.file is not None
    before = replace(unit, loaded=person, dropins=(token,), file=replace(unit.file, text=None, sha256=None))
    assert not [row for row in drift_of(adopted(), before, frozenset()) if "dropin" in row.field]
