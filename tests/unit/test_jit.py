"""Compiled kernels: kept, shared and compiled again when they must be; and what users read meanwhile."""

import fcntl
import io
import logging
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba.core.compiler import Flags

import bilinq
from bilinq import jit, linking

CODE = "import sys; sys.path.insert(0, sys.argv[1]); import small; print(small.outer(1.0))"
ONCE = "compiling kernels for this machine"


def make(folder: Path, factor: int, kernels: int = 0) -> None:
    """Write a package with one kernel that calls one in another file, and that a chain of `kernels` others."""
    package = folder / "small"
    package.mkdir(exist_ok=True)
    shutil.copy(Path(bilinq.__file__).parent / "jit.py", package / "jit.py")
    chain = "".join(f"@kernel\ndef k{n}(x):\n    return {f'k{n - 1}(x)' if n else 'x'}\n\n" for n in range(kernels))
    inner = f"@kernel\ndef inner(x):\n    return {factor}.0 * {f'k{kernels - 1}(x)' if kernels else 'x'}\n"
    (package / "inner.py").write_text(f"from small.jit import kernel\n\n\n{chain}{inner}")
    imports = "from small.jit import kernel\nfrom small.inner import inner\n"
    outer = f"{imports}\n\n@kernel\ndef outer(x):\n    return inner(x)\n"
    if not (package / "__init__.py").exists():
        (package / "__init__.py").write_text(outer)


def start(folder: Path, code: str = CODE, **variables: str) -> subprocess.Popen[str]:
    """Start a process that calls the outer kernel."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | variables
    return subprocess.Popen([sys.executable, "-B", "-c", code, str(folder)], env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def run(folder: Path, code: str = CODE, **variables: str) -> tuple[float, str]:
    """Return what the outer kernel returned in another process, and what a user read there."""
    process = start(folder, code, **variables)
    printed, told = process.communicate()
    assert process.returncode == 0, told
    return float(printed), told


def folders(place: Path) -> list[Path]:
    return list(place.glob("kernels-*"))


def test_a_change_in_another_file_is_noticed(tmp_path: Path) -> None:
    for factor in (2, 3):
        make(tmp_path, factor)
        assert run(tmp_path) == (factor, "")
        assert len(folders(tmp_path / "small" / "__pycache__")) == 1


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of six kernels that are compiled."""
    folder = tmp_path_factory.mktemp("built")
    make(folder, 2, kernels=4)
    value, told = run(folder)
    assert value == 2.0
    assert told.splitlines()[0] == f"bilinq: {ONCE}, 1 of 6; this happens only once"
    return folder


def copied(built: Path, folder: Path) -> Path:
    """Return the folder of compiled kernels in a copy of the package."""
    shutil.copytree(built / "small", folder / "small")
    (kernels,) = folders(folder / "small" / "__pycache__")
    return kernels


def test_kernels_move_with_their_folder(built: Path, tmp_path: Path) -> None:
    """A copy at another place, such as an image of a container, uses the kernels that it contains, without a message."""
    copied(built, tmp_path)
    assert run(tmp_path) == (2.0, "")


def test_a_package_that_cannot_be_written_uses_other_folders(tmp_path: Path) -> None:
    """A file in the place of a folder cannot be written, not even by root."""
    make(tmp_path, 2)
    (tmp_path / "small" / "__pycache__").write_text("")
    assert run(tmp_path, XDG_CACHE_HOME=str(tmp_path / "user")) == (2.0, "")
    assert len(folders(tmp_path / "user" / "bilinq")) == 1
    assert run(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "mine")) == (2.0, "")
    assert len(folders(tmp_path / "mine")) == 1
    value, told = run(tmp_path, XDG_CACHE_HOME=str(tmp_path / "small" / "__pycache__"))
    assert value == 2.0 and "each process compiles them; set NUMBA_CACHE_DIR" in told


def test_a_folder_that_is_read_only_is_used_for_what_it_contains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image of a container: an empty one is passed over, and one with kernels is not."""
    monkeypatch.setattr(jit.SETTINGS, "CACHE_DIR", str(tmp_path / "image"))
    monkeypatch.setattr(jit, "_writable", lambda folder: folder.is_relative_to(tmp_path / "user"))
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "package" / "jit.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    name = f"kernels-{jit._digest()}"
    assert jit.cache_folder.__wrapped__() == tmp_path / "user" / "bilinq" / name
    (stored := tmp_path / "image" / name / "allocation" / "a.nbc").parent.mkdir(parents=True)
    stored.touch()
    assert jit.cache_folder.__wrapped__() == tmp_path / "image" / name


def kernels_in(folder: Path) -> tuple[set[str], set[str]]:
    """Return the names of stored kernels that Python calls, and of their parts."""
    names = [file.name for file in folder.rglob("*.nbc")]
    return {name.split("-")[0] for name in names if "-inner" not in name}, {
        name.split("-")[0] for name in names if "-inner" in name
    }


def test_a_small_allocation_compiles_one_kernel_and_few_parts(tmp_path: Path) -> None:
    """63 functions of which one becomes machine code; this takes 10 s of CPU where the bound was set."""
    call = "allocate([3.0] * 10, [[0.2, 0.9]] * 10, [1.0, 1.0], V=10.0)"
    code = f"from bilinq import allocate; print({call}.residual)"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    residual, told = run(tmp_path, code, NUMBA_CACHE_DIR=str(tmp_path))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert residual < 1e-9 and f"{ONCE}, 1 of 63;" in told
    kernels, parts = kernels_in(tmp_path)
    assert kernels == {"small.solve_small_plain"} and 40 <= len(parts) <= 63
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60.0


PARTS = f"""
from bilinq.linking import llvm
parse, parsed = llvm.parse_bitcode, []
llvm.parse_bitcode = lambda code: parsed.append(code) or parse(code)
{CODE}
print(len(parsed), file=sys.stderr)
"""


def test_parts_that_another_process_has_stored_are_used(built: Path, tmp_path: Path) -> None:
    for file in copied(built, tmp_path).rglob("__init__.outer*"):
        file.unlink()
    value, told = run(tmp_path, PARTS)
    assert value == 2.0 and told.splitlines()[-1] == "1"  # the function that the kernel calls, with all that it calls


def test_compiled_functions_of_users_may_call_kernels(built: Path, tmp_path: Path) -> None:
    copied(built, tmp_path)
    code = "import sys, numba; sys.path.insert(0, sys.argv[1]); from small import inner, outer; print(user(1.0))"
    user = "numba.njit(lambda x: inner(x) + outer(x))"
    assert run(tmp_path, code.replace("user", user))[0] == 4.0


SHARED = """
from small.jit import in_place_kernel, kernel
from small.linking import share


@share
@in_place_kernel
def large(x, n):
    return x * n


@kernel
def one(x):
    return large(x, 1.0)


@kernel
def two(x):
    return one(x) + large(x, 2)
"""
COUNTED = """
import sys
sys.path.insert(0, sys.argv[1])
from small import linking
made, compile = [], linking.KernelLibrary._optimize_final_module
linking.KernelLibrary._optimize_final_module = lambda library: made.append(library.name) or compile(library)
import numba
from small import one, two
print(VALUE)
print(*made, file=sys.stderr)
"""


def test_shared_functions_become_machine_code_once(tmp_path: Path) -> None:
    """Whoever calls them: kernels of this process, of one that finds them stored, and functions of users."""
    make(tmp_path, 2)
    shutil.copy(Path(bilinq.__file__).parent / "linking.py", tmp_path / "small" / "linking.py")
    jit_file = tmp_path / "small" / "jit.py"
    jit_file.write_text(jit_file.read_text().replace("bilinq.linking", "small.linking"))
    (tmp_path / "small" / "__init__.py").write_text(SHARED)
    for value, expected, compiled in (
        ("one(3.0)", 3.0, "large one"), ("two(3.0) + one(1.0)", 10.0, "large two"), ("two(3.0)", 9.0, ""),
        ("numba.njit(lambda x: two(x) + one(x))(3.0)", 12.0, ""),
    ):  # fmt: skip
        found, told = run(tmp_path, COUNTED.replace("VALUE", value))
        assert (found, told.splitlines()[-1].strip()) == (expected, compiled), value


def test_options_are_equal_where_numba_says_so() -> None:
    """What is set differs from what is not set only if it differs from the default."""
    kinds = [{}, {"nrt": False}, {"nrt": True}, {"noalias": True, "nrt": True}, {"noalias": True}, {"noalias": False}]
    made: Any = Flags
    flags = [made() for _ in kinds]
    for one, values in zip(flags, kinds, strict=True):
        for name, value in values.items():
            setattr(one, name, value)
    for one in flags:
        for other in flags:
            assert linking._are_equal(one, other) == (one == other)
        assert linking._hash(Flags) == hash(one)
    assert not linking._are_equal(flags[0], 1)


FULL = f"""
import builtins, sys, errno
opened = builtins.open
def full(name, mode="r", *rest, **more):
    if "w" in mode and "kernels-" in str(name):
        raise OSError(errno.ENOSPC, "No space left on device")
    return opened(name, mode, *rest, **more)
builtins.open = full
{CODE}
"""


def test_a_full_disk_costs_time_and_not_the_result(tmp_path: Path) -> None:
    make(tmp_path, 2)
    value, told = run(tmp_path, FULL)
    assert value == 2.0
    assert told.count("compiled kernels cannot be stored in") == 1 and "No space left" in told


def test_damaged_files_are_compiled_again(built: Path, tmp_path: Path) -> None:
    for file in copied(built, tmp_path).rglob("*.nb?"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    value, told = run(tmp_path)
    assert value == 2.0 and ONCE in told


def test_one_process_compiles_and_the_other_waits(built: Path, tmp_path: Path) -> None:
    kernels = copied(built, tmp_path)
    for file in (stored := list(kernels.rglob("*.nb?"))):
        file.rename(file.with_suffix(file.suffix + "-later"))
    with (kernels / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start(tmp_path)
        assert process.stderr is not None
        assert process.stderr.readline() == "bilinq: waiting for another process that compiles kernels\n"
        for file in stored:  # what the other process stores
            file.with_suffix(file.suffix + "-later").rename(file)
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert process.communicate() == ("2.0\n", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, logs: bool, calls: int = 1) -> str:
    """Return what is shown while each of some calls compiles three kernels."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(logging.getLogger("bilinq"), "propagate", logs)
    monkeypatch.setattr(jit, "_called", lambda _: set(range(jit.MANY)))
    monkeypatch.setattr(jit, "cache_folder", lambda: None)
    work = jit.Work()
    for _ in range(calls):
        kernels = [object() for _ in range(4)]
        with work.on(kernels[0]):
            for kernel in kernels[1:]:
                with work.on(kernel):
                    work.begin()
                    assert work.text is not None
        assert work.text is None
    return stream.getvalue()


def test_a_terminal_shows_progress_and_then_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = report(monkeypatch, Terminal(), logs=False)
    assert [part.split(";")[0] for part in shown.split("\r\x1b[K")] == [
        "", f"bilinq: {ONCE}, 1 of 5", f"bilinq: {ONCE}, 2 of 5", f"bilinq: {ONCE}, 3 of 5", "",
    ]  # fmt: skip


def test_the_next_call_goes_on_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who waits for a service reads 7 of 9, and then 1 of 11."""
    monkeypatch.setattr(jit, "EVERY", 0.0)
    shown = report(monkeypatch, io.StringIO(), logs=False, calls=2)
    assert [line.removeprefix(f"bilinq: {ONCE}, ").split(";")[0] for line in shown.splitlines()] == [
        "1 of 5", "2 of 5", "3 of 5", "6 of 10", "7 of 10", "8 of 10",
    ]  # fmt: skip


def test_a_file_or_a_notebook_gets_few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first job of a scheduler compiles nine kernels."""
    shown = report(monkeypatch, io.StringIO(), logs=False, calls=9)
    assert shown == f"bilinq: {ONCE}, 1 of 5; this happens only once\n"


def test_a_service_logs_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [caplog.handler])  # those of other tests may be closed
    with caplog.at_level(logging.INFO, "bilinq.jit"):
        assert report(monkeypatch, io.StringIO(), logs=True) == ""
    assert caplog.messages == [f"{ONCE}, 1 of 5; this happens only once"]
