"""The notebooks in `examples` run cell by cell, as in Jupyter: each value is shown, and each plot is drawn."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib import pyplot

BOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


def cells(book: Path) -> list[dict[str, Any]]:
    found: dict[str, Any] = json.loads(book.read_text(encoding="utf-8"))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    return list(found["cells"])


def code(book: Path) -> Iterator[tuple[str, str]]:
    """Yield name and source of each code cell."""
    for cell in cells(book):
        if cell["cell_type"] == "code":
            yield f"{book.name}, {cell['id']}", "".join(cell["source"])


def run_cell(name: str, source: str, namespace: dict[str, Any]) -> Any:
    """Run a cell and return what it shows: the value of its last line, unless this ends with a semicolon."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, name, "exec"), namespace)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), name, "exec"), namespace)
    value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)
    return None if source.rstrip().endswith(";") else value


@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.stem)
def test_every_cell_runs_and_every_plot_draws(book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    shown, drawn = 0, 0
    for name, source in code(book):
        value = run_cell(name, source, namespace)
        if value is not None:
            html = value._repr_html_() if hasattr(value, "_repr_html_") else None
            assert html or repr(value)
            shown += 1
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            figure.canvas.draw()
            assert figure.axes and all(ax.has_data() for ax in figure.axes)
            drawn += 1
        assert ("plot(" in source and "print(" not in source) <= bool(pyplot.get_fignums()), f"{name} draws nothing"
        pyplot.close("all")
    assert shown and drawn


def test_there_are_four_notebooks_without_outputs() -> None:
    names = ["first_steps", "my_own_table", "paper_in_ten_cells", "which_router_for_my_models"]
    assert [book.stem for book in BOOKS] == names
    for book in BOOKS:
        for cell in cells(book):
            assert not cell.get("outputs") and cell.get("execution_count") is None, f"{book.name} has outputs"
