"""The only file that imports pynvml: access to the NVIDIA driver, whose failures are reasons in words, never crashes.

NVML counts memory in two ways: in version 2 `used` is memory of programs and `reserved` memory of the driver; in
version 1 (drivers before R510) `used` is their sum (nvml.h, nvmlMemory_v2_t). One process reads all its devices in one
way, version 2 if the driver supports it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

NOT_AVAILABLE = 2**64 - 1
"""The driver's value for an unknown number (nvml.h, NVML_VALUE_NOT_AVAILABLE)."""

# Return codes of nvml.h (nvmlReturn_t); they are part of the driver's binary interface and do not change.
SUCCESS = 0
NO_PERMISSION, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 4, 9, 12, 13
GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH, ARGUMENT_VERSION_MISMATCH = 15, 16, 18, 25

_WORDS = {
    NO_PERMISSION: "no permission to query the NVIDIA driver",
    DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    LIBRARY_NOT_FOUND: "no NVIDIA driver: libnvidia-ml.so.1 not found",
    FUNCTION_NOT_FOUND: "the NVIDIA driver is too old for this call",
    VERSION_MISMATCH: "the loaded NVIDIA driver and libnvidia-ml.so.1 differ in version",
}

T = TypeVar("T")


class NvmlFault(Exception):  # noqa: N818 - a state of the machine, not a mistake in a program
    """A call to the driver failed; the text is the reason, for people."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code

    @property
    def lost(self) -> bool:
        """True if the device will not answer again until the machine is repaired."""
        return self.code in (GPU_IS_LOST, RESET_REQUIRED)


class BoundCall(NamedTuple):
    """A C function of the driver, bound to one device and to the structure that it fills at each call."""

    ask: Callable[[], int]
    """Fills `answer`; returns nvmlReturn_t: `answer` is valid only after SUCCESS."""
    answer: Any


class Driver:
    """The driver's library, loaded and initialised; use `call`, or `bind` for repeated calls."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError:
            raise NvmlFault("the package nvidia-ml-py (pynvml) is not installed") from None
        self._binding: Any = pynvml
        # The mismatch error is no NVMLError, and old bindings lack it.
        mismatch = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
        self._errors = (pynvml.NVMLError, mismatch)
        self.memory_api: str | None = None
        """`v2` or `v1`, decided by the first device that answers."""
        self.call("nvmlInit")

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        """Call the binding's function `name`.

        Raises:
            NvmlFault: the driver refused, or the driver or the binding lacks the function.

        """
        function = getattr(self._binding, name, None)
        if function is None:
            raise NvmlFault(f"nvidia-ml-py is too old: no {name}", FUNCTION_NOT_FOUND)
        try:
            return function(*args, **options)
        except self._errors as error:
            code = getattr(error, "value", FUNCTION_NOT_FOUND)
            raise NvmlFault(f"{_WORDS.get(code, str(error))} ({name})", code) from None

    def bind(self, name: str, handle: Any, answer: Any) -> BoundCall | None:
        """Bind the library function `name` to a device and `answer`; None if the library lacks it.

        A call takes a third of the time without the binding's own work. Errors are explained by `call` alone.
        """
        library = getattr(self._binding, "nvmlLib", None)
        if library is None or not hasattr(library, name):
            return None
        return BoundCall(functools.partial(library[name], handle, ctypes.byref(answer)), answer)

    def bind_memory(self, handle: Any) -> BoundCall | None:
        """Bind `memory` of one device; the answer has `used` and `reserved`. None in version 1."""
        if self.memory_api != "v2":
            return None
        answer = self._binding.c_nvmlMemory_v2_t(version=self._binding.nvmlMemory_v2)
        return self.bind("nvmlDeviceGetMemoryInfo_v2", handle, answer)

    def memory(self, handle: Any) -> tuple[int | None, int | None, int | None]:
        """Total, used and reserved bytes of a device; reserved is None in version 1, where used includes it.

        Raises:
            NvmlFault: the driver does not report it.

        """
        if self.memory_api != "v1":
            try:
                return self._memory_v2(handle)
            except NvmlFault as fault:
                no_v2 = fault.code in (FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH)
                if self.memory_api == "v2" or not no_v2:
                    raise
        answer = self.call("nvmlDeviceGetMemoryInfo", handle)
        self.memory_api = "v1"
        return known(answer.total), known(answer.used), None

    def _memory_v2(self, handle: Any) -> tuple[int | None, int | None, int | None]:
        version = getattr(self._binding, "nvmlMemory_v2", None)
        if version is None:
            raise NvmlFault("nvidia-ml-py is too old: no nvmlMemory_v2", FUNCTION_NOT_FOUND)
        answer = self.call("nvmlDeviceGetMemoryInfo", handle, version=version)
        self.memory_api = "v2"
        return known(answer.total), known(answer.used), known(answer.reserved)

    def processes(self, handle: Any) -> dict[int, int | None]:
        """Bytes of each process on a device, by the driver's process ids; None if unknown.

        Takes milliseconds and holds a lock that all processes on the device need: never poll it. A process that
        computes and draws is in both of the driver's lists, with the same memory.

        Raises:
            NvmlFault: the driver does not report it.

        """
        drawing = or_none(lambda: self._processes("Graphics", handle)) or {}
        return drawing | self._processes("Compute", handle)

    def _processes(self, kind: str, handle: Any) -> dict[int, int | None]:
        """Try the second version of the call first: R530 and early R535 fill entries of the third one wrongly."""
        try:
            entries = self.call(f"nvmlDeviceGet{kind}RunningProcesses_v2", handle)
        except NvmlFault as fault:
            if fault.code != FUNCTION_NOT_FOUND:
                raise
            entries = self.call(f"nvmlDeviceGet{kind}RunningProcesses_v3", handle)
        return {entry.pid: known(entry.usedGpuMemory) for entry in entries}


@functools.cache
def driver() -> Driver:
    """Return the driver, initialised once in this process; a failure is not cached.

    Raises:
        NvmlFault: there is no driver, or it refuses.

    """
    return Driver()


def unavailable_reason() -> str | None:
    """Reason why this machine's NVIDIA driver is unavailable; None if it is available."""
    try:
        driver()
    except NvmlFault as fault:
        return str(fault)
    return None


def known(number: int | None) -> int | None:
    """`number` of the driver as an int; None for "not available"."""
    return None if number is None or number == NOT_AVAILABLE else int(number)


def text(value: str | bytes) -> str:
    """Text of the binding as str: its structures and its old versions return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def or_none(ask: Callable[[], T]) -> T | None:
    """Result of `ask`; None if the driver refuses."""
    try:
        return ask()
    except NvmlFault:
        return None
