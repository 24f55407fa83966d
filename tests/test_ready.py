"""Readiness: who answered decides what the answer means, and only a generated token is a generation."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from daemon.domain.observation import Listener, Unknown
from daemon.domain.spec import ServingSpec
from daemon.domain.status import Reason
from daemon.planner.desired import place
from daemon.planner.world import Declared, Desired
from daemon.probes.probe import ProbeAnswer, UnitNow
from daemon.ready import generation_request, judge
from tests.planner.box import Box
from tests.planner.driving import spec

INVOCATION = "a" * 32
GROUP = "/system.slice/stoker-m.server.service"

pytestmark = pytest.mark.main_job


def desired(**more: object) -> Desired:
    one = spec(**more)  # type: ignore[arg-type]
    placed = place(Declared("m", "uid-m", 1, "server", one, one.role_view("server")), Box().look(0, ()), "store-uid")
    assert isinstance(placed, Desired)
    return placed


def completion(**more: object) -> bytes:
    body = {"model": "/models/m", "choices": [{"text": "1 2 3"}], "usage": {"completion_tokens": 8}}
    return json.dumps({**body, **more}).encode()


def answer(status: int = 200, body: bytes = b"", **more: object) -> ProbeAnswer:
    """The declared process of this invocation answers on its own port; `more` says what is otherwise."""
    wanted = desired()
    unit = UnitNow(INVOCATION, 1001, GROUP, "active")
    good = ProbeAnswer(
        before=unit, after=unit, listeners=(Listener("0.0.0.0", 30001, (1001,)),), peers=(1001,),
        cgroups={1001: GROUP}, argv=wanted.launch.argv, mark=wanted.launch_hash, http_status=status,
        body=body or completion(), failure=None, detail="", took_ms=80,
    )  # fmt: skip
    return replace(good, **more)  # type: ignore[arg-type]


def verdict(probe: ProbeAnswer, wanted: Desired | None = None, invocation: str = INVOCATION) -> tuple[bool, Reason]:
    ok, reason, _ = judge(probe, wanted or desired(), invocation)
    return ok, reason


def test_a_token_generated_by_the_declared_process_is_ready() -> None:
    assert verdict(answer()) == (True, Reason.GENERATED)


def test_a_frozen_engine_behind_a_living_server_is_a_generation_timeout() -> None:
    """C01, C07: /health and /v1/models answer, the generation does not."""
    probe = answer(failure=Reason.GENERATION_TIMEOUT, detail="exit status 28", http_status=0)
    assert verdict(probe) == (False, Reason.GENERATION_TIMEOUT)


@pytest.mark.parametrize("kind", ["completions", "chat", "embeddings", "score"])
def test_no_readiness_asks_a_page_that_answers_without_the_engine(kind: str) -> None:
    """C01, C07: /health, /version and /v1/models prove no life."""
    view = desired(readiness={"kind": kind}).declared.view
    method, path, body = generation_request(view, "server", "n")
    assert method == "POST"
    assert path not in ("/health", "/version", "/v1/models")
    assert body is not None
    assert body["model"] == "/models/m"


def test_the_prompt_carries_the_nonce_and_the_tokens_are_bounded() -> None:
    view = desired(readiness={"kind": "completions", "maxTokens": 32}).declared.view
    _, _, body = generation_request(view, "server", "5f3a")
    assert body is not None
    assert "5f3a" in body["prompt"]
    assert body["max_tokens"] == 32


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_what_cannot_generate_alone_is_asked_for_its_health_only(role: str) -> None:
    assert generation_request(desired().declared.view, role, "n") == ("GET", "/health", None)


def test_an_old_process_on_the_port_is_told_from_the_new_one() -> None:
    """C09: the restart said success, the old process still answers."""
    probe = answer(
        listeners=(Listener("0.0.0.0", 30001, (2200,)),), peers=(2200,),
        cgroups={2200: "/user.slice/user-0.slice/session-4.scope"},
    )  # fmt: skip
    assert verdict(probe) == (False, Reason.STALE_PROCESS_SERVING)
    assert "2200" in judge(probe, desired(), INVOCATION)[2]


@pytest.mark.parametrize("failure", [Reason.GENERATION_TIMEOUT, Reason.CONNECTION_REFUSED, Reason.GENERATION_FAILED])
def test_a_stranger_on_the_port_is_the_story_whatever_its_answer_was(failure: Reason) -> None:
    """C09."""
    probe = answer(peers=(1001, 2200), cgroups={1001: GROUP, 2200: "/old"}, failure=failure)
    assert verdict(probe) == (False, Reason.STALE_PROCESS_SERVING)


def test_a_listener_beside_ours_on_the_same_port_is_a_stranger() -> None:
    """C09: SO_REUSEPORT lets both listen; which of them answers is chance."""
    both = (Listener("0.0.0.0", 30001, (1001,)), Listener("127.0.0.1", 30001, (2200,)))
    probe = answer(listeners=both, cgroups={1001: GROUP, 2200: "/old"})
    assert verdict(probe) == (False, Reason.STALE_PROCESS_SERVING)


@pytest.mark.parametrize("peers", [(), Unknown(Reason.TRUNCATED)])
def test_a_listener_that_took_the_request_and_never_accepts_it_is_the_story(peers: object) -> None:
    """Where it listens on 127.0.0.1 it gets every request of the probe: nobody holds the far end, and none answers."""
    both = (Listener("0.0.0.0", 30001, (1001,)), Listener("127.0.0.1", 30001, (2200,)))
    probe = answer(
        listeners=both, peers=peers, cgroups={1001: GROUP, 2200: "/old"}, failure=Reason.GENERATION_TIMEOUT,
    )  # fmt: skip
    assert verdict(probe) == (False, Reason.STALE_PROCESS_SERVING)
    assert "2200" in judge(probe, desired(), INVOCATION)[2]


def test_a_cgroup_whose_name_only_begins_like_the_units_is_a_strangers() -> None:
    """C09."""
    assert verdict(answer(cgroups={1001: GROUP + "x"})) == (False, Reason.STALE_PROCESS_SERVING)


def test_a_restart_around_the_probe_proves_nothing() -> None:
    """C09: the answer may be of the process before it."""
    other = UnitNow("b" * 32, 1001, GROUP, "active")
    assert verdict(answer(after=other)) == (False, Reason.PROBE_PENDING)
    assert verdict(answer(before=other)) == (False, Reason.PROBE_PENDING)
    assert verdict(answer(before=other, after=other)) == (False, Reason.PROBE_PENDING)
    assert verdict(answer(after=UnitNow(INVOCATION, 1002, GROUP, "active"))) == (False, Reason.PROBE_PENDING)


def test_a_unit_without_an_invocation_binds_no_answer() -> None:
    nameless = UnitNow("", 1001, GROUP, "active")
    assert verdict(answer(before=nameless, after=nameless), invocation="") == (False, Reason.PROBE_PENDING)


@pytest.mark.parametrize("part", ["before", "after", "listeners", "peers", "cgroups", "argv"])
def test_a_part_that_could_not_be_read_is_never_ready(part: str) -> None:
    ok, _ = verdict(replace(answer(), **{part: Unknown(Reason.TRUNCATED)}))  # type: ignore[arg-type]
    assert not ok


def test_an_owner_that_cannot_be_seen_is_never_ready() -> None:
    assert not verdict(answer(peers=()))[0]
    assert not verdict(answer(listeners=(Listener("0.0.0.0", 30001, ()),)))[0]
    assert not verdict(answer(cgroups={}))[0]


def test_other_running_arguments_are_not_the_declared_server() -> None:
    """D21, C09: the script behind an unchanged unit started it otherwise."""
    argv = (*desired().launch.argv[:-1], "32")
    assert verdict(answer(argv=argv)) == (False, Reason.ARGV_MISMATCH)
    assert verdict(answer(mark="v1:older")) == (False, Reason.ARGV_MISMATCH)
    assert verdict(answer(mark=None)) == (False, Reason.ARGV_MISMATCH)


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_asks_for_a_key_lives(status: int) -> None:
    """C10."""
    probe = answer(status, b'{"error":"Unauthorized"}')
    assert verdict(probe) == (False, Reason.PROBE_UNAUTHORIZED)


@pytest.mark.parametrize("status", [400, 404, 413, 422, 429])
def test_a_refusal_by_our_own_process_is_alive_and_refused(status: int) -> None:
    ok, reason, text = judge(answer(status, b'{"detail":"max_tokens too large"}'), desired(), INVOCATION)
    assert (ok, reason) == (False, Reason.PROBE_REFUSED)
    assert "max_tokens too large" in text


def test_a_crash_on_the_first_request_is_never_ready() -> None:
    """C11: loaded is not able to answer."""
    assert verdict(answer(500, b"EngineDeadError")) == (False, Reason.GENERATION_FAILED)
    assert verdict(answer(failure=Reason.GENERATION_FAILED, http_status=0)) == (False, Reason.GENERATION_FAILED)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "reasoning_content": "The user"},
        {"role": "assistant", "content": ""},
        {"role": "assistant"},
    ],
)
def test_tokens_spent_on_thinking_count_as_generated(message: dict[str, object]) -> None:
    """C15: 200, empty text, finish_reason length."""
    body = completion(choices=[{"message": message, "finish_reason": "length"}])
    assert verdict(answer(body=body), desired(readiness={"kind": "chat"})) == (True, Reason.GENERATED)


@pytest.mark.parametrize(
    "body",
    [
        b"OK",
        b"[]",
        b'"generated"',
        b"\xff\xfe",
        b'{"object":"list","data":[{"id":"/models/m"}]}',
        completion(usage={"completion_tokens": 0}),
        completion(usage={"completion_tokens": "8"}),
        completion(usage={"completion_tokens": True}),
        completion(usage=None),
        completion(usage=[8]),
        completion(choices=[], usage={}),
    ],
)
def test_an_answer_without_a_generated_token_is_no_generation(body: bytes) -> None:
    """C01, C15."""
    assert verdict(answer(body=body)) == (False, Reason.GENERATION_FAILED)


def test_another_model_on_our_port_is_named() -> None:
    ok, reason, text = judge(answer(body=completion(model="old")), desired(), INVOCATION)
    assert (ok, reason) == (False, Reason.WRONG_MODEL)
    assert "old" in text


def test_an_embedding_needs_data() -> None:
    wanted = desired(readiness={"kind": "embeddings"})
    assert verdict(answer(body=b'{"data":[{"embedding":[0.1]}],"model":"/models/m"}'), wanted)[0]
    assert verdict(answer(body=b'{"data":[]}'), wanted) == (False, Reason.GENERATION_FAILED)


def test_every_kind_of_readiness_has_a_request() -> None:
    for kind in ("completions", "chat", "embeddings", "score", "http"):
        view: ServingSpec = desired(readiness={"kind": kind, **({"path": "/ready"} if kind == "http" else {})}
                                    ).declared.view  # fmt: skip
        assert generation_request(view, "server", "n")[1].startswith("/")
