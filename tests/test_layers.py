"""The table in docs/architecture.md is the law; this reads every import and holds it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "takg"


def allowed() -> dict[str, set[str]]:
    """Layer -> layers it may import, from the table."""
    table = {}
    for line in (ROOT / "docs" / "architecture.md").read_text().splitlines():
        if match := re.match(r"\| `(\w+)` \| ([\w, ]*)\|", line):
            table[match[1]] = {name.strip() for name in match[2].split(",") if name.strip()}
    return table


def layer_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def imported_layers(tree: ast.Module) -> list[tuple[int, str, str]]:
    """(line, layer, full module) of every import of takg, wherever in the module it stands."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative imports hide the layer; write it out"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "takg" else [module]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "takg":
                found.append((node.lineno, parts[1] if len(parts) > 1 else "takg", name))
    return found


MODULES = sorted(SOURCE.rglob("*.py"))


def test_the_table_names_every_layer_once_and_only_points_upwards() -> None:
    table = allowed()
    layers = {layer_of(path) for path in MODULES} - {"__init__"}
    assert set(table) == layers
    seen: set[str] = set()
    for layer, imports in table.items():
        assert imports <= seen, f"{layer} may import {imports - seen}, which stand below it"
        seen.add(layer)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    layer = layer_of(path)
    for line, target, name in imported_layers(ast.parse(path.read_text())):
        if layer == "__init__" or target == layer:
            continue
        assert target in allowed()[layer], f"{path.name}:{line} imports {name}; {layer} may not"
        is_private = any(part.startswith("_") for part in name.split(".")[2:])
        assert not is_private, f"{path.name}:{line} reaches into {name}; import from its package"


def test_a_forbidden_import_inside_a_function_is_seen() -> None:
    tree = ast.parse("def f():\n    from takg.gp import fit\n    import takg.study._ask\n")
    assert imported_layers(tree) == [(2, "gp", "takg.gp"), (3, "study", "takg.study._ask")]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_engine_imports_no_peer(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name.split(".")[0] for name in names} & {"botorch", "gpytorch", "optuna", "pyro"}
