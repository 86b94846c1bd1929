"""Imports go one way: each module may import only what lies below it."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "wyoming_chattts"

# from top to bottom; a name covers the modules that start with it
LAYERS = [
    ["__main__"],
    ["cli"],
    ["commands"],
    ["bench"],
    ["server"],
    ["handler", "discovery", "web"],
    ["offline", "status"],
    ["speech", "model", "protocol_limits"],
    ["flights"],
    ["worker", "cache", "audio", "loudness", "text", "voices"],
    ["voice_folder"],
    ["engine"],
    ["logs", "addon_options"],
    ["config", "errors", "atomic", "metrics"],
    ["__init__"],
]
TORCH_ONLY_IN = ("engine", "bench", "commands.doctor")
WYOMING_ONLY_IN = ("server", "handler", "commands", "bench")

FILES = sorted(PACKAGE.rglob("*.py"))


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "__init__"


def _layer(name: str) -> int:
    top = name.split(".")[0]
    return next(i for i, names in enumerate(LAYERS) if top in names)


def _imports(path: Path) -> set[str]:
    """Modules that a file imports: ours as `.name`, others as they are."""
    found: set[str] = set()
    depth = len(path.relative_to(PACKAGE).parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                found.add(node.module or "")
                continue
            base = path.relative_to(PACKAGE).parts[: depth - node.level]
            if node.module:
                found.add("." + ".".join([*base, node.module]))
            else:
                found |= {"." + ".".join([*base, alias.name]) for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_imports_go_downwards(path: Path) -> None:
    name = _name(path)
    for imported in _imports(path):
        if imported.startswith("."):
            other = imported[1:]
            if other.startswith("__"):
                continue
            same = other.split(".")[0] == name.split(".")[0]
            assert same or _layer(other) >= _layer(name), f"{name} imports {other}"
        elif imported.split(".")[0] == "torch":
            assert name.startswith(TORCH_ONLY_IN), f"{name} imports torch"
        elif imported.split(".")[0] == "wyoming":
            assert name.startswith(WYOMING_ONLY_IN), f"{name} imports wyoming"


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_modules_say_what_they_are_for_and_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), f"{path} has no docstring"
    assert len(text.splitlines()) <= 500, f"{path} is too long"
