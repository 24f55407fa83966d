"""What a newcomer meets before any code runs: the package's files, the README's commands, what the manifests name."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from api.cli.commands import app
from daemon.settings import Settings

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_package_data_is_every_file_that_is_no_python() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    packed = {
        path.relative_to(ROOT)
        for package, globs in data.items()
        for glob in globs
        for path in (ROOT / package).glob(glob)
    }
    files = {
        path.relative_to(ROOT)
        for package in ("daemon", "api")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert {"daemon/host/stoker-host", "daemon/host/gate", "daemon/engines/flags.json"} <= {str(path) for path in files}
    assert packed == files


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for package in ("daemon", "api") for path in (ROOT / package).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("package", ["daemon", "api"])
def test_what_is_imported_is_declared(package: str) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[^\w-]", text)[0].replace("-", "_").lower() for text in declared}
    modules = names | {"yaml", "starlette", "daemon", "api"}
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            found = [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            found += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in found:
                top = name.split(".")[0]
                assert top in sys.stdlib_module_names or top in modules, f"{path}: {name}"


def test_the_readme_names_every_command_and_no_other() -> None:
    real = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"`stoker ([a-z]+)", README)) == real


def test_the_settings_that_are_named_exist() -> None:
    texts = [README, *(path.read_text() for path in (ROOT / "manifests/systemd").iterdir())]
    texts.append((ROOT / "Dockerfile").read_text())
    named = {name for text in texts for name in re.findall(r"\bSTOKER_([A-Z_]+)\b", text)}
    assert named - {"CONFIG", "URL", "TOKEN", "TOKEN_FILE"} <= {name.upper() for name in Settings.model_fields}


def test_make_goals_that_are_named_exist() -> None:
    goals = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    run = (ROOT / ".ci/run").read_text()
    assert set(re.findall(r"\bmake ([a-z-]+)$", run, re.MULTILINE)) <= goals
    assert set(re.findall(r"`make ([a-z-]+)", README)) <= goals


def test_the_locked_file_covers_what_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    locked = re.findall(r"^([a-z0-9][\w.-]*)==", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert {re.split(r"[^\w-]", text)[0].lower() for text in wanted} <= set(locked)
    # The Dockerfile's way of reading it: one line for each, nothing of the hashes.
    plain = re.findall(r"^([a-z0-9][^ ]*==[^\\]*)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert len(plain) == len(locked)
    assert not any("hash" in text for text in plain)
