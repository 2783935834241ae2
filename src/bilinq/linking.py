"""How a kernel is put together with the functions that it calls: all are optimised and become machine code together, once.

Numba does both for each function, every time together with all that it calls, so that a function ten calls deep is compiled
ten times. Here only kernels that Python calls become machine code. Functions that kernels call are parts: each keeps the
code that Numba made for it alone until a kernel is put together. A large function of several kernels can be shared: it
becomes machine code once, with its parts, which these kernels call.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, TypeVar

import numba
from numba.core.registry import cpu_target

F = TypeVar("F", bound=Callable[..., Any])

llvm: Any = import_module("llvmlite.binding")
lookup_environment: Any = import_module("numba.core.environment").lookup_environment
Function: Any = import_module("numba.core.types.functions").BaseFunction
Options: Any = import_module("numba.core.targetconfig").TargetConfig
CodeLibrary: Any = import_module("numba.core.codegen").JITCodeLibrary

TESTED = (0, 68)
"""The version of Numba whose inner parts are known here; with another one it compiles each function as it always does."""
WRAPPER, ENVIRONMENT = "_ZN7cpython", "_ZN08NumbaEnv"
"""How names begin: of the code that Python calls, and of what a function needs to know of Python."""
SHARED: set[str] = set()
"""How names of shared functions begin."""
CALL_TYPES: dict[Any, Any] = {}
"""What operations of Numba's own return for arguments of some types, with the operation: it is asked very often."""


def share(function: F) -> F:
    """Let kernels share the machine code of a compiled function: for large functions that several of them call."""
    path = f"{function.__module__}.{function.__qualname__}".split(".")
    SHARED.add("_ZN" + "".join(f"{len(word)}{word}" for word in path) + "B")
    return function


class KernelLibrary(CodeLibrary):  # type: ignore[misc]
    """The code of one function: a part, or a kernel or shared function with all its parts.

    `symbol` is the name of a shared function, and `beside` has the libraries of shared functions that the code calls.
    """

    part = False
    symbol = ""
    loaded: ClassVar[dict[str, "KernelLibrary"]] = {}
    _own: Any = None
    _stored: Any = None

    def __init__(self, codegen: Any, name: str) -> None:
        super().__init__(codegen, name)
        self.beside: dict[str, KernelLibrary] = {}

    def finalize(self) -> None:
        """Put a kernel together and compile it; of a part only note that nothing will be added."""
        self._raise_if_finalized()
        names = [function.name for function in self._final_module.functions if not function.is_declaration]
        if not any(name.startswith(WRAPPER) for name in names):
            self.symbol = next((name for name in names if name.startswith(tuple(SHARED))), "")
            self.part = not self.symbol
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
        if self.symbol:
            self.loaded[self.symbol] = self

    def _libraries(self) -> list[Any]:
        """Return the libraries of all that is called, callers first, since the linker keeps only what is called.

        Those of shared functions are noted in `beside`.
        """
        seen: set[Any] = set()
        order: list[Any] = []

        def visit(library: Any) -> None:
            for callee in library._linking_libraries:
                if callee in seen:
                    continue
                seen.add(callee)
                if isinstance(callee, KernelLibrary) and callee.symbol:
                    self.beside[callee.symbol] = callee
                    continue
                if _is_part(callee):
                    self.beside.update(callee.beside)
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

    def serialize_using_object_code(self) -> Any:
        """Return what is stored: machine code, or of a part its code with all that it calls, not optimised.

        The machine code of shared functions is stored with each library that calls them.
        """
        self._ensure_finalized()
        if self._stored is not None:
            return self._stored
        beside = [library.serialize_using_object_code() for library in self.beside.values()]
        if self.part:
            return self.symbol, beside, (self.name, "part", self._get_module_for_linking().as_bitcode())
        return self.symbol, beside, super().serialize_using_object_code()

    @classmethod
    def _unserialize(cls, codegen: Any, state: Any) -> Any:
        symbol, beside, stored = state
        if symbol in cls.loaded:
            return cls.loaded[symbol]
        called = [cls._unserialize(codegen, part) for part in beside]
        if stored[1] == "part":
            library = cls(codegen, stored[0])
            library._final_module = llvm.parse_bitcode(stored[2])
            library.part = library._finalized = True
        else:
            library = super()._unserialize(codegen, stored)
        library.beside, library.symbol = {one.symbol: one for one in called}, symbol
        if symbol:
            cls.loaded[symbol], library._stored = library, state
        return library


def _is_part(library: Any) -> bool:
    return isinstance(library, KernelLibrary) and library.part


@cache
def _hash(kind: Any) -> int:
    """Return what Numba takes as the hash of all options of a kind."""
    return hash(tuple(sorted(kind.options)))


def _are_equal(one: Any, other: Any) -> bool:
    """Tell whether two sets of options are equal, from what is set, and the defaults of the others."""
    if not isinstance(other, Options):
        return False
    mine, its, known = one._values, other._values, one.options
    if mine.keys() == its.keys():
        return bool(mine == its)
    return type(one) is type(other) and all(
        mine.get(name, known[name].default) == its.get(name, known[name].default) for name in mine.keys() | its.keys()
    )


@contextmanager
def put_together() -> Iterator[None]:
    """Let Numba make libraries of this kind while kernels are compiled or loaded; the lock of its compiler must be held.

    Meanwhile nothing is made for callers in C, whom nobody is, and the garbage collector, which finds nothing, rests. Two
    questions that Numba asks itself half a million times are answered faster: whether options are equal, and what an
    operation returns for arguments of some types.
    """
    context = cpu_target.target_context
    codegen = context.codegen()
    if numba.version_info.short != TESTED or "_library_class" in vars(codegen):
        yield
        return
    set_env, collects, compared = codegen.set_env, gc.isenabled(), (Options.__hash__, Options.__eq__)
    call_type = Function.get_call_type

    def known_call_type(function: Any, types: Any, args: Any, named: Any) -> Any:
        key = id(function), id(types), tuple(args), tuple(named.items())
        if key not in CALL_TYPES:
            signature = call_type(function, types, args, named)
            if function._impl_keys.get(signature.args) is not function.typing_key:
                return signature  # a function that Numba compiles, and in another way for other options
            CALL_TYPES[key] = function, signature
        return CALL_TYPES[key][1]

    def set_if_compiled(name: str, environment: object) -> None:
        if codegen._engine.is_symbol_defined(name):
            set_env(name, environment)

    gc.disable()
    codegen._library_class, codegen.set_env = KernelLibrary, set_if_compiled
    context.create_cfunc_wrapper = lambda *_: None
    Options.__hash__, Options.__eq__ = lambda options: _hash(options.__class__), _are_equal
    Function.get_call_type = known_call_type
    try:
        yield
    finally:
        del codegen._library_class, codegen.set_env, context.create_cfunc_wrapper
        Options.__hash__, Options.__eq__ = compared
        Function.get_call_type = call_type
        if collects:
            gc.enable()
