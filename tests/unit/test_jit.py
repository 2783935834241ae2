"""Kernels that were compiled from older sources are not used."""

import shutil
import subprocess
import sys
from pathlib import Path

import bilinq

CODE = "import sys; sys.path.insert(0, sys.argv[1]); import small; print(small.outer(1.0))"


def make(folder: Path, factor: int) -> None:
    """Write a package with one kernel that calls one in another file."""
    package = folder / "small"
    package.mkdir(exist_ok=True)
    shutil.copy(Path(bilinq.__file__).parent / "jit.py", package / "jit.py")
    (package / "inner.py").write_text(
        f"from small.jit import kernel\n\n\n@kernel\ndef inner(x):\n    return {factor}.0 * x\n"
    )
    imports = "from small.jit import kernel\nfrom small.inner import inner\n"
    outer = f"{imports}\n\n@kernel\ndef outer(x):\n    return inner(x)\n"
    if not (package / "__init__.py").exists():
        (package / "__init__.py").write_text(outer)


def test_a_change_in_another_file_is_noticed(tmp_path: Path) -> None:
    for factor in (2, 3):
        make(tmp_path, factor)
        printed = subprocess.run(
            [sys.executable, "-c", CODE, str(tmp_path)], check=True, capture_output=True, text=True
        )
        assert float(printed.stdout) == factor
        assert len(list((tmp_path / "small" / "__pycache__").glob("kernels-*"))) == 1
