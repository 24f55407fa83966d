"""Titles that a spec names for its engine's processes, and who is on a protect list."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from daemon.domain.host import HostSpec, Protect
from daemon.domain.observation import ProcessId
from daemon.domain.spec import SpecStrays
from daemon.planner.holders import shapes_of
from daemon.planner.protect import protected
from daemon.planner.titles import Shapes, is_engine
from tests.planner.box import UUIDS, Box
from tests.planner.driving import HOST, Driver, spec
from tests.planner.test_ownership import MARKS, process

pytestmark = pytest.mark.strays


@pytest.mark.parametrize(
    ("title", "argv"),
    [
        ("trtllm-serve", ("/opt/x/bin/trtllm-serve", "serve", "/models/m")),
        ("trtllm-serve", ("/opt/x/bin/python3.11", "/opt/x/bin/trtllm-serve", "serve")),
        ("trtllm-serve", ("trtllm-serve: rank 3",)),
        ("python -m lmdeploy", ("/opt/x/bin/python", "-m", "lmdeploy", "serve")),
        ("python -m lmdeploy", ("python", "-m", "lmdeploy.serve")),
        ("-m lmdeploy", ("/opt/x/bin/python3", "-m", "lmdeploy", "serve")),
        ("tgi::", ("tgi::worker_0",)),
    ],
)
def test_a_title_is_the_beginning_of_the_command_line(title: str, argv: tuple[str, ...]) -> None:
    assert is_engine(process(argv=argv, comm="x"), Shapes((title,)))
    assert not is_engine(process(argv=argv, comm="x"))


@pytest.mark.parametrize(
    ("title", "argv"),
    [
        ("trtllm", ("trtllmexec", "--bench")),
        ("trtllm-serve", ("tail", "-f", "/var/log/trtllm-serve.log")),
        ("trtllm-serve", ("python3", "supervise.py", "trtllm-serve")),
        ("trtllm-serve", ("grep", "trtllm-serve")),
        ("python -m lmdeploy", ("python", "-m", "lmdeployer")),
        ("python -m lmdeploy", ("python", "-c", "print('python -m lmdeploy')")),
    ],
)
def test_a_title_further_behind_or_only_begun_is_none(title: str, argv: tuple[str, ...]) -> None:
    assert not is_engine(process(argv=argv, comm="x"), Shapes((title,)))


@pytest.mark.parametrize(
    "argv",
    [
        ("python3", "-m", "sglang.launch_server", "--port", "1"),
        ("/opt/x/bin/python3.11", "-u", "-X", "faulthandler", "-m", "vllm.entrypoints.openai.api_server"),
        ("python3", "-um", "sglang.launch_server"),
        ("/opt/x/bin/python", "/opt/x/bin/vllm", "serve", "/m"),
        ("/opt/x/bin/vllm", "serve", "/m"),
        ("timeout", "-k", "5", "2h", "sglang", "serve"),
        ("sudo", "-u", "serve", "env", "A=1", "python3", "-m", "sglang.launch_server"),
        ("sglang::scheduler_TP0",),
        ("VLLM::Worker_TP0",),
        ("VLLM::Worker/a/b",),
        ("python3 -m sglang.launch_server --port 1",),
    ],
)
def test_a_built_in_engine_is_known_by_what_is_run(argv: tuple[str, ...]) -> None:
    assert is_engine(process(argv=argv, comm="x"))


@pytest.mark.parametrize(
    "argv",
    [
        ("python3", "train.py", "--dataset", "/data/vllm.v1/set"),
        ("python3", "train.py", "--log", "/var/log/sglang.launch_server.log"),
        ("python3", "train.py", "--serve-command", "vllm serve /m"),
        ("python3", "train.py", "vllm", "serve"),
        ("python3", "-c", "import torch  # vllm serve"),
        ("python3", "-m", "trainer", "sglang::"),
        ("python3", "/home/a/sglang.srt/train.py"),
        ("/data/vllm.v1/bin/train",),
        ("ssh", "-L", "30001:localhost:8000", "gpu-b", "vllm serve /m"),
        ("tail", "-f", "/var/log/sglang.srt.log"),
        ("python train.py --note vllm serve",),
    ],
)
def test_an_engine_that_is_only_spoken_of_is_none(argv: tuple[str, ...]) -> None:
    """A trainer of the same user that nobody attends is nobody's to end, whatever its arguments name."""
    assert not is_engine(process(argv=argv, comm="python3"))
    driver = Driver(Box(), {"m": spec()}, host=HOST.model_copy(update={"exclusive": True}))
    trainer = driver.box.spawn(argv, "/gone", gpus={UUIDS[0]: 9000})
    for _ in range(8):
        driver.turn()
    assert trainer.pid in driver.box.procs


def test_a_command_line_of_half_a_million_interpreters_is_read_at_once() -> None:
    assert not is_engine(process(argv=("sh",) * 500_000, comm="sh"), Shapes(("trtllm-serve",)))
    assert not is_engine(process(argv=("sh " * 500_000,), comm="sh"), Shapes(("trtllm-serve",)))


def test_the_kernels_name_is_the_title_cut_at_fifteen() -> None:
    """B05."""
    shapes = Shapes(("trtllm-serve-worker", "tgi-launcher"))
    assert is_engine(process(argv=(), comm="trtllm-serve-wo"), shapes)
    assert is_engine(process(argv=(), comm="tgi-launcher"), shapes)
    assert not is_engine(process(argv=(), comm="trtllm-serve"), shapes)
    assert not is_engine(process(argv=(), comm="tgi-launchers"), shapes)


@pytest.mark.parametrize(
    "title",
    ["python3", "/usr/bin/python3.11", "python3 -m", "bash", "sudo", "env", "node", "java -jar", "abc", "x" * 129,
     " lead", "two  gaps", "a\tb\tc", "line\nbreak", ""],
)  # fmt: skip
def test_what_would_name_every_program_of_an_interpreter_is_refused(title: str) -> None:
    """B14: never by interpreter."""
    with pytest.raises(ValidationError):
        SpecStrays(titles=(title,))


@pytest.mark.parametrize(
    "title", ["trtllm-serve", "python3 -m trtllm", "python3 /opt/serve.py", "tgi::", "java -jar a"]
)
def test_what_names_one_engine_is_taken(title: str) -> None:
    assert SpecStrays(titles=(title,)).titles == (title,)


CUSTOM = {
    "engine": {"name": "custom", "command": ["/opt/trt/bin/serve", "--port", "30001"]},
    "strays": {"titles": ["trtllm-worker"]},
}


@pytest.mark.parametrize(
    ("argv", "is_ours"),
    [
        (("trtllm-worker", "0"), True),
        (("/opt/trt/bin/serve", "--port", "30001"), True),
        (("/opt/trt/bin/serve", "--port", "30002"), False),
        (("trtllm-bench",), False),
    ],
)
def test_a_custom_engine_is_known_by_its_titles_and_its_own_command(argv: tuple[str, ...], is_ours: bool) -> None:
    host = HOST.model_copy(update={"exclusive": True})
    driver = Driver(Box(), {"m": spec(**CUSTOM)}, host=host)  # type: ignore[arg-type]
    assert shapes_of(driver.world()).titles == ("trtllm-worker",)
    left = driver.box.spawn(argv, "/gone", gpus={UUIDS[0]: 9000})
    for _ in range(8):
        driver.turn()
    assert (left.pid not in driver.box.procs) is is_ours


class TestProtect:
    """Who is never signalled."""

    @pytest.mark.parametrize(
        ("rule", "who"),
        [
            ({"cgroup": "/lab.slice"}, ("tool", "script")),
            ({"cgroup": "/lab.slice/"}, ("tool", "script")),
            ({"cgroup": "/lab.slice/trial"}, ("tool", "script")),
            ({"cgroup": "/lab.slice/trial/deep"}, ("tool",)),
            ({"user": "ada"}, ("tool",)),
            ({"command": "trial"}, ("tool",)),
            ({"command": "/opt/bin/trial"}, ("tool",)),
            ({"command": "train.py"}, ("script",)),
            ({"unit": "lab.service"}, ("inside",)),
        ],
    )
    def test_by_cgroup_user_command_or_unit(self, rule: dict[str, str], who: tuple[str, ...]) -> None:
        rules = (Protect.model_validate(rule),)
        processes = {
            "tool": process(argv=("/opt/bin/trial", "x"), comm="trial", cgroup="/lab.slice/trial/deep", user="ada"),
            "script": process(argv=("/usr/bin/python3", "/home/x/train.py"), cgroup="/lab.slice/trial"),
            "inside": process(argv=("x",), cgroup="/system.slice/lab.service/sub"),
            "other": process(argv=("trial2", "trial"), cgroup="/lab.slice2/trial", user="adam"),
        }
        assert tuple(name for name, one in processes.items() if protected(one, rules)) == who

    @pytest.mark.parametrize("cgroup", ["/lab.slicer", "/lab", "/x/lab.slice", "/lab.slice2/a", "/"])
    def test_a_cgroup_is_compared_part_by_part(self, cgroup: str) -> None:
        assert not protected(process(cgroup=cgroup), (Protect(cgroup="/lab.slice"),))

    @pytest.mark.parametrize("rule", [
        {}, {"cgroup": "/"}, {"cgroup": "lab.slice"}, {"cgroup": "/a/../b"}, {"cgroup": "/a//b"}, {"cgroup": "/a\nb"},
        {"cgroup": "/a", "user": "ada"}, {"unit": "a.scope"}, {"group": "x"},
    ])  # fmt: skip
    def test_a_rule_that_says_nothing_or_too_much_is_refused(self, rule: dict[str, str]) -> None:
        with pytest.raises(ValidationError):
            HostSpec.model_validate({"ssh": {"address": "192.0.2.1"}, "protect": [rule]})

    def test_neither_the_first_process_nor_the_kernels_own(self) -> None:
        assert protected(process(id=ProcessId(1, 0)), ())
        assert protected(process(2, argv=(), ppid=0, comm="kthreadd"), ())
        assert protected(process(77, argv=(), ppid=2, comm="kworker/0:1"), ())
        inside = process(2, argv=("VLLM::EngineCore",), ppid=1)  # in a container pid 2 is anybody
        assert not protected(inside, ())
        assert not protected(process(77, argv=("VLLM::Worker",), ppid=2), ())

    def test_a_process_that_wiped_its_command_line_is_not_taken_for_the_kernels(self) -> None:
        assert not protected(process(argv=(), comm="x"), ())

    @pytest.mark.parametrize("argv", [
        ("/usr/sbin/sshd", "-D"), ("sshd-session: ada [priv]",), ("/lib/systemd/systemd", "--user"),
        ("/opt/stoker/bin/python", "/opt/stoker/bin/stoker", "serve"), ("/bin/sh", "/var/lib/stoker/stoker-host", "x"),
        ("/usr/bin/nvidia-persistenced",), ("/usr/bin/dcgm-exporter", "-f", "x"), ("/usr/lib/xorg/Xorg", ":0"),
    ])  # fmt: skip
    def test_what_a_host_hangs_on_is_on_the_list_whatever_carries_our_mark(self, argv: tuple[str, ...]) -> None:
        assert protected(process(argv=argv, comm="x", marks=MARKS), ())

    @pytest.mark.parametrize("argv", [
        ("python3", "-u", "/opt/monitoring/agent.py"), ("python3", "-X", "dev", "-O", "/opt/monitoring/agent.py"),
        ("bash", "-e", "/opt/monitoring/agent.py"), ("python3 -u /opt/monitoring/agent.py",),
        ("sudo", "/opt/monitoring/agent.py"),
    ])  # fmt: skip
    def test_a_script_is_named_behind_the_options_of_its_interpreter_too(self, argv: tuple[str, ...]) -> None:
        assert protected(process(argv=argv, comm="python3"), (Protect(command="agent.py"),))

    def test_a_word_in_a_piece_of_code_names_no_script(self) -> None:
        argv = ("python3", "-c", "agent.py")
        assert not protected(process(argv=argv, comm="python3"), (Protect(command="agent.py"),))

    @pytest.mark.parametrize(("rule", "is_protected"), [("ada", True), ("root", False)])
    def test_a_user_whose_name_could_not_be_looked_up_may_be_the_protected_one(
        self, rule: str, is_protected: bool
    ) -> None:
        """A directory service that does not answer must not end the protection of its users."""
        assert protected(process(uid=1234, user=""), (Protect(user=rule),)) is is_protected
        assert not protected(process(uid=1234, user="bob"), (Protect(user=rule),))
