"""Claims about the packages: what is installed, and who may import whom."""

from __future__ import annotations

import ast
import importlib.resources
import importlib.util
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("spec", "model", "gpu", "checks")
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
LISTED: list[str] = PROJECT["tool"]["setuptools"]["packages"]

OURS_ALLOWED = {
    "spec": {"spec"},
    "model": {"model"},
    "gpu": {"gpu", "model"},
    "checks": {"checks", "gpu", "model", "spec"},
}
"""Which of our packages each may import: the arrows of the architecture."""
MODULE_OF = {"z3-solver": "z3"}
"""Distributions whose module has another name."""


def folder_of(package: str) -> Path:
    """The folder of a package: kvproof.checks.adapters is checks/adapters."""
    return ROOT.joinpath(*package.split(".")[1:])


def modules(folder: str) -> Iterator[tuple[str, Path]]:
    """Dotted name and path of every module in one of the four folders."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield "kvproof." + ".".join(path.relative_to(ROOT).with_suffix("").parts), path


def imports(name: str, tree: ast.AST) -> Iterator[str]:
    """Every absolute module name that the code imports, anywhere in it."""
    package = name.removesuffix(".__init__") if name.endswith(".__init__") else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            yield ".".join([*above, *([node.module] if node.module else [])])
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "kvproof":
                yield from (f"kvproof.{alias.name}" for alias in node.names)
            else:
                yield node.module


def foreign(names: Iterator[str] | list[str]) -> set[str]:
    """Top-level names that are neither ours nor the standard library's."""
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"kvproof"}


def modules_of(requirements: list[str]) -> set[str]:
    """Top-level modules of requirements such as ``"numpy>=1.26"``."""
    names = {requirement.split(">")[0].split("=")[0].strip() for requirement in requirements}
    return {MODULE_OF.get(name, name) for name in names}


def test_every_package_of_the_tree_is_listed_and_typed() -> None:
    tree = {
        "kvproof." + ".".join(path.parent.relative_to(ROOT).parts)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
    }
    assert tree == set(LISTED), "a package that is not listed in pyproject.toml is missing from the wheel"
    assert len(LISTED) == len(set(LISTED))
    for package in LISTED:
        assert (folder_of(package) / "__init__.py").is_file(), f"{package} has no __init__.py"
        assert (folder_of(package) / "py.typed").is_file(), f"{package} has no py.typed: type checkers ignore it"


def test_kvproof_itself_is_a_namespace() -> None:
    assert not (ROOT / "__init__.py").exists()
    assert not (ROOT / "kvproof").exists()


@pytest.mark.parametrize("package", LISTED)
def test_what_is_installed_has_its_marker(package: str) -> None:
    # find_spec imports the parents only, so no engine is needed to look at a folder.
    spec = importlib.util.find_spec(package)
    assert spec is not None
    (installed,) = spec.submodule_search_locations or ()
    assert Path(installed, "py.typed").is_file()
    assert Path(installed, "__init__.py").is_file()


def test_the_bundled_data_is_installed() -> None:
    data = importlib.resources.files("kvproof.checks").joinpath("data")
    installed = {entry.name for entry in data.iterdir()}
    assert {path.name for path in (ROOT / "checks" / "data").iterdir()} <= installed
    assert "synthetic.jsonl" in installed


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_follow_the_arrows(folder: str) -> None:
    found = list(modules(folder))
    assert found
    for name, path in found:
        for target in imports(name, ast.parse(path.read_text())):
            parts = target.split(".")
            if parts[0] == "kvproof":
                assert len(parts) > 1, f"{name} imports the bare namespace kvproof"
                assert parts[1] in OURS_ALLOWED[folder], f"{name} imports {target}: the arrows forbid it"
            assert parts[0] not in (*FOLDERS, "tests"), f"{name} imports {target}: say kvproof.{target}"


@pytest.mark.parametrize("folder", ["spec", "model"])
def test_spec_and_model_use_the_standard_library_alone(folder: str) -> None:
    for name, path in modules(folder):
        assert not (found := foreign(imports(name, ast.parse(path.read_text())))), f"{name} imports {found}"


def test_the_gpu_backend_adds_torch_alone() -> None:
    """Triton is optional: one module has its kernels."""
    for name, path in modules("gpu"):
        allowed = {"torch", "triton"} if name == "kvproof.gpu.triton_kernels" else {"torch"}
        found = foreign(imports(name, ast.parse(path.read_text()))) - allowed
        assert not found, f"{name} imports {found}"


def test_checks_import_only_what_is_declared() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    declared = modules_of(PROJECT["project"]["dependencies"]).union(*map(modules_of, extras.values()))
    for name, path in modules("checks"):
        found = foreign(imports(name, ast.parse(path.read_text()))) - declared
        assert not found, f"{name} imports {found}, which pyproject.toml does not declare"


def test_engines_are_imported_only_where_they_are_used() -> None:
    """Outside the adapters, an optional package is imported inside the function that needs it."""
    core = modules_of(PROJECT["project"]["dependencies"])
    for name, path in modules("checks"):
        if name.startswith("kvproof.checks.adapters."):
            continue
        top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        found = foreign(list(imports(name, ast.Module(body=list(top), type_ignores=[])))) - core
        assert not found, f"{name} imports {found} at the top: the core must work without it"


def test_the_model_imports_in_a_bare_interpreter(tmp_path: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "model", tmp_path / "kvproof" / "model", ignore=ignore)
    names = [name.removesuffix(".__init__") for name, _ in modules("model")]
    program = f"import importlib, sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    program += f"for name in {names!r}: importlib.import_module(name)\n"
    program += "print(*sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    # -I and -S: no environment variables, no user folder, no site-packages.
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"__main__", "kvproof"}


def test_no_file_points_outside_the_repository() -> None:
    """Paths of the machine it was written on would be dead links for everybody else."""
    forbidden = ("../" + "shared", "/" + "work/")
    seen = 0
    for path in repository_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        seen += 1
        for words in forbidden:
            assert words not in text, f"{path.relative_to(ROOT)} mentions {words}"
    assert seen > 20


def repository_files() -> list[Path]:
    """Files under version control, or all that are not hidden when this is no checkout."""
    try:
        done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        found = [path for path in ROOT.rglob("*") if not any(p.startswith(".") for p in path.relative_to(ROOT).parts)]
    else:
        found = [ROOT / name for name in done.stdout.split("\0") if name]
    return [path for path in found if path.is_file()]


def test_the_checks_of_imports_see_imports() -> None:
    """The tests above are not vacuous: each way to import is found."""
    text = "import torch.nn\nfrom kvproof import gpu\ndef f():\n    from . import x\n    from ..spec import y\n"
    found = set(imports("kvproof.model.z", ast.parse(text)))
    assert found == {"torch.nn", "kvproof.gpu", "kvproof.model", "kvproof.spec"}
    assert foreign(list(found)) == {"torch"}
    assert modules_of(["z3-solver>=4.13", "torch==2.13.0"]) == {"z3", "torch"}
