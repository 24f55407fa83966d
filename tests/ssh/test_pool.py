"""The pool: roads through jump hosts, few handshakes at once, roads remade when the way changed."""

from __future__ import annotations

import asyncio

from daemon.domain.host import HostSpec
from daemon.domain.status import Reason
from daemon.ssh import LocalRoad
from tests.ssh.stage import fails, pool, serve, spec_of, until
from tests.ssh.test_handshake import silent


async def test_a_jump_host_has_its_own_key_and_one_connection_for_all() -> None:
    async with serve() as jump, serve() as first, serve() as second, pool({"jump": spec_of(jump)}) as roads:
        for name, sshd in (("first", first), ("second", second)):
            done = await roads.road(name, spec_of(sshd, jump="jump")).run(("echo", name), b"", 5)
            assert done.stdout == f"{name}\n".encode()
        done = await roads.road("jump", spec_of(jump)).run(("echo", "jump"), b"", 5)
        assert done.stdout == b"jump\n"
        assert (len(jump.connections), len(first.connections), len(second.connections)) == (1, 1, 1)


async def test_an_unknown_key_of_the_jump_host_names_the_hop() -> None:
    async with serve() as jump, serve() as sshd, pool({"jump": spec_of(jump, host_key=None)}) as roads:
        with fails(Reason.JUMP_HOST_KEY_UNKNOWN) as caught:
            await roads.road("target", spec_of(sshd, jump="jump")).run(("true",), b"", 5)
        assert "jump host jump" in caught.value.message
        assert not sshd.connections


async def test_an_unknown_key_behind_the_jump_host_is_the_targets() -> None:
    async with serve() as jump, serve() as sshd, pool({"jump": spec_of(jump)}) as roads:
        with fails(Reason.HOST_KEY_UNKNOWN):
            await roads.road("target", spec_of(sshd, jump="jump", host_key=None)).run(("true",), b"", 5)


async def test_two_hops_work() -> None:
    async with serve() as outer, serve() as inner, serve() as sshd:
        hosts = {"outer": spec_of(outer), "inner": spec_of(inner, jump="outer")}
        async with pool(hosts) as roads:
            done = await roads.road("target", spec_of(sshd, jump="inner")).run(("echo", "deep"), b"", 5)
            assert done.stdout == b"deep\n"
            assert len(outer.connections) == 1


async def test_jump_hosts_in_a_circle_are_refused() -> None:
    async with serve() as sshd:
        hosts = {"a": spec_of(sshd, jump="b"), "b": spec_of(sshd, jump="a")}
        async with pool(hosts) as roads:
            with fails(Reason.UNREACHABLE) as caught:
                await roads.road("a", hosts["a"]).run(("true",), b"", 5)
            assert "circle" in caught.value.message


async def test_a_jump_host_that_does_not_exist_is_named() -> None:
    async with serve() as sshd, pool() as roads:
        with fails(Reason.HOST_NOT_FOUND) as caught:
            await roads.road("target", spec_of(sshd, jump="absent")).run(("true",), b"", 5)
        assert "absent" in caught.value.message


async def test_a_jump_host_that_dies_is_reached_anew() -> None:
    async with serve() as jump, serve() as sshd, pool({"jump": spec_of(jump)}) as roads:
        road = roads.road("target", spec_of(sshd, jump="jump"))
        await road.run(("true",), b"", 5)
        jump.cut()
        assert (await road.run(("echo", "again"), b"", 5)).stdout == b"again\n"
        assert jump.logins == 2


async def test_few_handshakes_at_once_reach_one_sshd() -> None:
    async with serve() as sshd, pool(handshakes_at_once=3) as roads:
        await asyncio.gather(*(roads.road(f"h{n}", spec_of(sshd)).run(("true",), b"", 10) for n in range(12)))
        assert sshd.logins == 12
        assert sshd.most_shaking <= 3


async def test_few_handshakes_at_once_go_through_one_jump_host() -> None:
    async with serve() as jump, serve() as sshd, pool({"jump": spec_of(jump)}, handshakes_at_once=3) as roads:
        spec = spec_of(sshd, jump="jump")
        await asyncio.gather(*(roads.road(f"h{n}", spec).run(("true",), b"", 10) for n in range(12)))
        assert (sshd.logins, jump.logins) == (12, 1)
        assert sshd.most_shaking <= 3


async def test_hosts_that_never_answer_delay_none_of_the_others() -> None:
    """F18: of three hundred hosts four never answer; all the others have, while these are still waited for."""
    slow = {"login_timeout_s": 60, "connect_timeout_s": 60}
    async with serve() as sshd, silent() as port, pool(**slow) as roads, asyncio.TaskGroup() as group:
        waits = [roads.road(f"d{n}", spec_of(sshd, port=port)).run(("true",), b"", 90) for n in range(4)]
        dead = [group.create_task(wait) for wait in waits]
        runs = (roads.road(f"h{n}", spec_of(sshd)).run(("echo", "ok"), b"", 90) for n in range(296))
        assert {done.stdout for done in await asyncio.gather(*runs)} == {b"ok\n"}
        assert not any(task.done() for task in dead)
        for task in dead:
            task.cancel()


async def test_a_road_is_kept_until_the_way_changes() -> None:
    async with serve() as sshd, serve() as moved, pool() as roads:
        spec = spec_of(sshd)
        road = roads.road("a", spec)
        assert roads.road("a", spec.model_copy(update={"mode": "enforce"})) is road
        async with asyncio.TaskGroup() as group:
            old = group.create_task(road.run(("sh", "-c", "sleep 0.2; echo old"), b"", 5))
            await until(lambda: sshd.running == 1)
            done = await roads.road("a", spec_of(moved)).run(("echo", "new"), b"", 5)
        assert (old.result().stdout, done.stdout) == (b"old\n", b"new\n")
        await until(lambda: sshd.open_connections == 0)
        with fails(Reason.TRANSPORT_LOST):
            await road.run(("true",), b"", 5)


async def test_a_forgotten_host_lets_its_connection_go() -> None:
    async with serve() as sshd, pool() as roads:
        await roads.road("a", spec_of(sshd)).run(("true",), b"", 5)
        roads.forget("a")
        roads.forget("a")
        await until(lambda: sshd.open_connections == 0)


async def test_a_closed_pool_gives_no_roads() -> None:
    async with serve() as sshd, pool() as roads:
        await roads.road("a", spec_of(sshd)).run(("true",), b"", 5)
        await roads.close()
        await until(lambda: sshd.open_connections == 0)
        with fails(Reason.TRANSPORT_LOST):
            roads.road("a", spec_of(sshd))


async def test_a_local_host_has_a_local_road_and_is_no_jump_host() -> None:
    local = HostSpec(local=True)
    async with serve() as sshd, pool({"here": local}) as roads:
        assert isinstance(roads.road("here", local), LocalRoad)
        with fails(Reason.UNREACHABLE):
            await roads.road("target", spec_of(sshd, jump="here")).run(("true",), b"", 5)


async def test_a_call_cancelled_as_its_connection_comes_is_cancelled() -> None:
    """At each of the loop's rounds around the login: its caller, who is told to end, must not go on."""
    async with serve() as sshd, pool() as roads:
        for rounds in range(40):
            before = sshd.logins
            calling = asyncio.ensure_future(roads.road(f"target-{rounds}", spec_of(sshd)).run(("true",), b"", 5))
            while sshd.logins == before:
                await asyncio.sleep(0)
            for _ in range(rounds):
                await asyncio.sleep(0)
            if not calling.cancel():
                break
            await asyncio.wait([calling])
            assert calling.cancelled(), f"{rounds} rounds of the loop after the login"
