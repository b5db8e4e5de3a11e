"""The shape of the code: budgets, and effects that stand in their marked places only."""

from __future__ import annotations

import ast
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Source

MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 40
MEDIAN_LINES_OF_A_FUNCTION = 10

ENVIRONMENT_IS_TOUCHED_IN = {
    "nb_accelerate/launch/environment.py": "the one reader",
    "nb_accelerate/worker/surroundings.py": "the one writer: a worker's own",
    "nb_accelerate/compat/environment.py": "upstream's own functions that read and change it",
    "nb_accelerate/training/joining.py": "what torchrun and Accelerate's variables say",
}

# Code of the user's runs there, and may raise anything.
BROAD_EXCEPTS = {
    "nb_accelerate/worker/rank.py": "the training function: the cell must hear of it",
    "nb_accelerate/payload/attempt.py": "what is pickled, by its own __reduce__",
    "nb_accelerate/launch/run.py": "a view: a broken picture must not stop a training",
}


def test_no_file_is_longer_than_its_budget(package: list[Source]) -> None:
    long = {s.name: n for s in package if (n := s.text.count("\n")) > MOST_LINES_OF_A_FILE}
    assert long == {}


def test_no_function_is_longer_than_its_budget(package: list[Source]) -> None:
    long = {
        f"{source.name} {name}": lines
        for source in package
        for name, function in source.functions()
        if (lines := length(function)) > MOST_LINES_OF_A_FUNCTION
    }
    assert long == {}


def test_half_of_all_functions_are_short(package: list[Source]) -> None:
    lengths = [length(function) for source in package for _, function in source.functions()]
    assert statistics.median(lengths) <= MEDIAN_LINES_OF_A_FUNCTION


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of its body; a signature and a docstring may take the room they need."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 1


def test_the_environment_is_touched_in_its_marked_files_only(package: list[Source]) -> None:
    touching = {source.name for source in package if touches_environment(source.tree)}
    assert touching <= ENVIRONMENT_IS_TOUCHED_IN.keys()


def touches_environment(tree: ast.Module) -> bool:
    names = {"environ", "environb", "getenv", "putenv", "unsetenv"}
    return any(
        (isinstance(node, ast.Attribute) and node.attr in names and called(node.value) == "os")
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and imports(node, names))
        for node in ast.walk(tree)
    )


def imports(node: ast.ImportFrom, names: set[str]) -> bool:
    return any(alias.name in names for alias in node.names)


def called(node: ast.AST) -> str:
    """The dotted name of an expression, such as "contextlib.suppress", or ""."""
    if isinstance(node, ast.Attribute):
        return f"{called(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def test_broad_excepts_stand_in_their_marked_places_only(package: list[Source]) -> None:
    catching = {source.name for source in package if any(broad_excepts(source.tree))}
    assert catching <= BROAD_EXCEPTS.keys()


def test_no_mark_for_a_broad_except_outlives_it(package: list[Source]) -> None:
    catching = {source.name for source in package if any(broad_excepts(source.tree))}
    assert catching >= BROAD_EXCEPTS.keys()


def broad_excepts(tree: ast.Module) -> Iterator[ast.AST]:
    """Handlers that catch everything and do not raise it again, and such `suppress` calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and is_broad(node.type) and not raises(node):
            yield node
        if isinstance(node, ast.Call) and called(node.func).endswith("suppress"):
            yield from (argument for argument in node.args if is_broad(argument))


def raises(handler: ast.ExceptHandler) -> bool:
    """Whether it only cleans up on the way."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    parts = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(called(part).rpartition(".")[2] in ("Exception", "BaseException") for part in parts)


def test_every_module_says_what_it_is_for(package: list[Source]) -> None:
    silent = [source.name for source in package if not ast.get_docstring(source.tree)]
    assert silent == []


def test_every_module_names_what_it_offers(package: list[Source]) -> None:
    silent = [source.name for source in package if offers(source) and not has_all(source.tree)]
    assert silent == []


def offers(source: Source) -> bool:
    """Whether other modules can import something from it."""
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    is_script = source.name.endswith("__main__.py")
    return not is_script and any(isinstance(node, defined) for node in source.tree.body)


def has_all(tree: ast.Module) -> bool:
    names = [
        called(target)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return "__all__" in names


def test_annotations_are_never_evaluated(package: list[Source]) -> None:
    evaluated = [
        source.name
        for source in package
        if offers(source) and "from __future__ import annotations" not in source.text
    ]
    assert evaluated == []


def test_no_state_is_kept_in_globals(package: list[Source]) -> None:
    writing = [
        f"{source.name}:{node.lineno}"
        for source in package
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Global)
    ]
    assert writing == []
