"""What `import bilinq` offers, and that it is imported only when it is used."""

import subprocess
import sys

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


def test_names_come_from_their_modules() -> None:
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
        f"import bilinq; assert bilinq.{module}.__name__ == 'bilinq.{module}'; assert '{module}' in dir(bilinq)"
    )


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="module 'bilinq' has no attribute 'Sabre'"):
        bilinq.Sabre  # noqa: B018
