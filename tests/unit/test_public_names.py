"""The names of `import bilinq`, and that they are loaded when first used."""

import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest

import bilinq


def in_a_new_process(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_loads_nothing_else() -> None:
    in_a_new_process("import sys, bilinq; assert not {'numpy', 'msgspec', 'httpx'} & set(sys.modules)")


def test_all_names_are_there_without_the_web_stack_ray_or_plots() -> None:
    code = "import sys; from bilinq import *; assert Sabr and oracle; "
    in_a_new_process(code + "assert not {'httpx', 'httptools', 'ray', 'matplotlib'} & set(sys.modules)")


def test_names_come_from_their_listed_modules() -> None:
    assert set(bilinq.__all__) == set(bilinq._HOME)
    for name in bilinq.__all__:
        value = getattr(bilinq, name)
        assert value.__name__ == name and value.__module__.startswith(f"bilinq.{bilinq._HOME[name]}")


@pytest.mark.parametrize(
    "first",
    ["import bilinq.problem.oracle", "from bilinq.problem.oracle import Oracle", "bilinq.oracle", "pass"],
)
def test_the_module_oracle_does_not_hide_the_function(first: str) -> None:
    in_a_new_process(
        f"import bilinq\n{first}\nassert callable(bilinq.oracle)\nfrom bilinq import oracle\nassert callable(oracle)"
    )


@pytest.mark.parametrize("module", bilinq._MODULES)
def test_modules_need_no_import_of_their_own(module: str) -> None:
    in_a_new_process(
        f"import bilinq; assert bilinq.{module}.__name__ == 'bilinq.{bilinq._MODULES[module]}'; "
        f"assert '{module}' in dir(bilinq)"
    )


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'bilinq' has no attribute 'Sabre'"):
        bilinq.Sabre  # noqa: B018


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(bilinq.__path__, "bilinq."):
        yield import_module(found.name)


@pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`", "ignore:Items? .* on TypedDict class")
def test_every_public_method_is_documented_by_itself_or_by_its_base() -> None:
    """An override needs no docstring if that of the method it overrides is enough; the linter would ask for one."""
    found = [(module, one) for module in modules() for one in vars(module).values() if inspect.isclass(one)]
    classes = [one for module, one in found if one.__module__ == module.__name__]
    methods = [(one, name) for one in classes for name in vars(one) if not name.startswith("_")]
    missing = [
        f"{one.__name__}.{name}"
        for one, name in methods
        if not one.__name__.startswith("_")
        and (inspect.isfunction(vars(one)[name]) or isinstance(vars(one)[name], property))
        and not inspect.getdoc(getattr(one, name))
    ]
    assert missing == []
