"""Settings: environment over file over default; a wrong one says which and what to do."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import pytest

from daemon.settings import Settings, SettingsError, load_settings, monotonic, wall_clock


def test_defaults_listen_on_loopback_and_trust_nobody() -> None:
    found = load_settings({})
    assert (found.listen_host, found.port) == ("127.0.0.1", 8460)
    assert (found.workers, found.reconcile_limit_s) == (16, 10.0)
    assert not found.accept_unknown_host_keys
    assert found.store_path == found.data / "stoker.db"
    assert found.data != Path("/var/lib/stoker")


def test_environment_outranks_the_file_and_the_file_the_default(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("port: 9000\nworkers: 4\nssh_agent: true\nlook_timeout_s: 5s\n")
    found = load_settings({"STOKER_CONFIG": str(file), "STOKER_PORT": "9001", "STOKER_DATA": str(tmp_path)})
    assert (found.port, found.workers, found.ssh_agent, found.look_timeout_s) == (9001, 4, True, 5.0)
    assert found.data == tmp_path


def test_named_file_outranks_the_one_of_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("port: 9000\n")
    assert load_settings({"STOKER_CONFIG": "/nonexistent"}, file).port == 9000


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10.0), ("2.5", 2.5), ("500ms", 0.5), ("10s", 10.0), ("5m", 300.0)]
)
def test_durations_are_seconds_or_text(text: str, seconds: float) -> None:
    assert load_settings({"STOKER_CONNECT_TIMEOUT_S": text}).connect_timeout_s == seconds


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("PORT", "http"),
        ("PORT", "70000"),
        ("WORKERS", "0"),
        ("SSH_AGENT", "perhaps"),
        ("CONNECT_TIMEOUT_S", "0"),
        ("CONNECT_TIMEOUT_S", "inf"),
        ("CONNECT_TIMEOUT_S", "nan"),
        ("CONNECT_TIMEOUT_S", "soon"),
        ("LOG_FORMAT", "xml"),
        ("RESYNC_JITTER", "2"),
    ],
)
def test_wrong_value_names_its_variable(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"STOKER_{name}"):
        load_settings({f"STOKER_{name}": text})


def test_empty_data_folder_is_refused_and_not_the_working_directory() -> None:
    with pytest.raises(SettingsError, match="data is empty"):
        load_settings({"STOKER_DATA": ""})


def test_relative_folder_and_tilde_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = load_settings({"STOKER_DATA": "here", "STOKER_SSH_IDENTITY": "~/.ssh/id"})
    assert (found.data, found.ssh_identity) == (tmp_path / "here", tmp_path / ".ssh/id")


def test_variables_of_others_are_left_alone() -> None:
    assert load_settings({"STOKER_TOKEN": "x", "PORT": "1"}).port == 8460


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot: 1\n", "prot"),
        ("- port\n", "name: value"),
        ("port: [\n", "not YAML"),
        ("port: !!python/object:os.system 1\n", "not YAML"),
        ("1: 2\n", "name: value"),
        ("resync_period_s: true\n", "resync_period_s"),
    ],
)
def test_wrong_file_is_told_with_its_path_or_name(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=told):
        load_settings({}, file)


def test_missing_file_is_an_error_and_an_empty_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nothing\.yaml"):
        load_settings({}, tmp_path / "nothing.yaml")
    (tmp_path / "empty.yaml").write_text("")
    assert load_settings({}, tmp_path / "empty.yaml").port == 8460


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(SettingsError, match="not YAML"):
        load_settings({}, tmp_path / "binary")


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().port = 1  # type: ignore[misc]


def test_clocks_give_utc_and_never_run_backwards() -> None:
    assert wall_clock().tzinfo is UTC
    assert monotonic() <= monotonic()
