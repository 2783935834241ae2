"""How a kernel is put together with the functions that it calls: all are optimised and become machine code together, once.

Numba does both for each function, every time together with all that it calls, so that a function ten calls deep is compiled
ten times. Here only kernels that Python calls become machine code. Functions that kernels call are parts: each keeps the
code that Numba made for it alone until a kernel is put together.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numba
from numba.core.registry import cpu_target

llvm: Any = import_module("llvmlite.binding")
lookup_environment: Any = import_module("numba.core.environment").lookup_environment
CodeLibrary: Any = import_module("numba.core.codegen").JITCodeLibrary

TESTED = (0, 68)
"""The version of Numba whose inner parts are known here; with another one it compiles each function as it always does."""
WRAPPER, ENVIRONMENT = "_ZN7cpython", "_ZN08NumbaEnv"
"""How names begin: of the code that Python calls, and of what a function needs to know of Python."""


class KernelLibrary(CodeLibrary):  # type: ignore[misc]
    """The code of one function: a part, or a kernel with all its parts."""

    part = False
    _own: Any = None

    def finalize(self) -> None:
        """Put a kernel together and compile it; of a part only note that nothing will be added."""
        self._raise_if_finalized()
        self.part = not any(function.name.startswith(WRAPPER) for function in self._final_module.functions)
        libraries = self._libraries()
        for library in libraries:
            self._reload_init.update(library._reload_init)
        if self.part:
            self._finalized = True
            return
        self._link(self._final_module, libraries)
        for function in self._final_module.functions:
            if function.linkage == llvm.Linkage.linkonce_odr:
                function.linkage = llvm.Linkage.internal  # otherwise a copy in another kernel might be called
        self._linking_libraries.clear()
        super().finalize()

    def _libraries(self) -> list[Any]:
        """Return the libraries of all that is called, callers first, since the linker keeps only what is called."""
        seen: set[Any] = set()
        order: list[Any] = []

        def visit(library: Any) -> None:
            for callee in library._linking_libraries:
                if callee not in seen:
                    seen.add(callee)
                    if _is_part(callee):
                        visit(callee)
                    order.append(callee)

        visit(self)
        return order[::-1]

    def _link(self, module: Any, libraries: list[Any]) -> None:
        for library in libraries:
            other = library.own_module() if _is_part(library) else library._get_module_for_linking()
            module.link_in(other, preserve=True)

    def own_module(self) -> Any:
        """Return the code of a part without what it calls."""
        if self._own is None:
            self._own, self._shared_module = super()._get_module_for_linking(), None
        return self._own

    def _get_module_for_linking(self) -> Any:
        """Return the code with all that it calls, for functions that are not compiled here: those of users."""
        self._ensure_finalized()
        if self.part and self._shared_module is None:
            module = self.own_module().clone()
            self._link(module, self._libraries())
            self._shared_module = module
        return super()._get_module_for_linking()

    def _finalize_specific(self) -> None:
        super()._finalize_specific()
        for variable in self._final_module.global_variables:
            environment = lookup_environment(variable.name) if variable.name.startswith(ENVIRONMENT) else None
            if environment is not None:
                self._codegen.set_env(variable.name, environment)

    def serialize_using_object_code(self) -> tuple[str, str, Any]:
        """Return what is stored: of a part its code with all that it calls, not optimised."""
        self._ensure_finalized()
        if self.part:
            return self.name, "part", self._get_module_for_linking().as_bitcode()
        stored: tuple[str, str, Any] = super().serialize_using_object_code()
        return stored

    @classmethod
    def _unserialize(cls, codegen: Any, state: tuple[str, str, Any]) -> Any:
        name, kind, data = state
        if kind != "part":
            return super()._unserialize(codegen, state)
        library = cls(codegen, name)
        library._final_module = llvm.parse_bitcode(data)
        library.part = library._finalized = True
        return library


def _is_part(library: Any) -> bool:
    return isinstance(library, KernelLibrary) and library.part


@contextmanager
def put_together() -> Iterator[None]:
    """Let Numba make libraries of this kind while kernels are compiled or loaded; the lock of its compiler must be held.

    Meanwhile nothing is made for callers in C, whom nobody is, and the garbage collector, which finds nothing, rests.
    """
    context = cpu_target.target_context
    codegen = context.codegen()
    if numba.version_info.short != TESTED or "_library_class" in vars(codegen):
        yield
        return
    set_env, collects = codegen.set_env, gc.isenabled()

    def set_if_compiled(name: str, environment: object) -> None:
        if codegen._engine.is_symbol_defined(name):
            set_env(name, environment)

    gc.disable()
    codegen._library_class, codegen.set_env = KernelLibrary, set_if_compiled
    context.create_cfunc_wrapper = lambda *_: None
    try:
        yield
    finally:
        del codegen._library_class, codegen.set_env, context.create_cfunc_wrapper
        if collects:
            gc.enable()
