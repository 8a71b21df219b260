"""Where forward passes compute: on the processor, or on a GPU to which the weights are streamed.

A GPU holds activations and one chunk of a matrix for each thread: chunks are decoded by our threads, copied from pinned
memory and multiplied while the next ones are decoded, so models larger than its memory run as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from ggferry.formats.errors import OutOfMemoryError, RefusedError, UsageError
from ggferry.support.heavy import torch

CPU = "cpu"
_chosen: ContextVar[str] = ContextVar("device", default=CPU)


def resolve(word: str) -> str:
    """Return what `--device` names: 'cpu', or 'cuda:N'. 'auto' is the first GPU if torch can use one, else 'cpu'.

    Raises UsageError for another word, and for a GPU that torch cannot use.
    """
    kind, _, number = word.partition(":")
    if word == CPU or (word == "auto" and not torch.cuda.is_available()):
        return CPU
    if kind not in ("auto", "cuda") or (word.partition(":")[1] and not (kind == "cuda" and number.isdecimal())):
        raise UsageError("--device", found=word, expected="auto, cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "torch finds no GPU it can use"
        raise UsageError("--device", found=word, expected=CPU, hint=why)
    if int(number or 0) >= torch.cuda.device_count():
        raise UsageError("--device", found=word, expected=f"cuda:0 to cuda:{torch.cuda.device_count() - 1}")
    return f"cuda:{int(number or 0)}"


@contextmanager
def computing_on(word: str) -> Iterator[None]:
    """Let the `Weights` that this thread opens compute on the device that `word` names.

    'auto' is resolved when weights are opened, so that what computes nothing needs no torch; anything else here. Raises
    as `resolve`; OutOfMemoryError where the device has too little memory, and RefusedError where it fails.
    """
    mark = _chosen.set(word if word == "auto" else resolve(word))
    try:
        yield
    except RuntimeError as error:
        if word == CPU or not isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError):
            raise
        if isinstance(error, torch.OutOfMemoryError):
            raise OutOfMemoryError("the GPU is out of memory", hint="--device cpu") from None
        raise RefusedError("the GPU failed", found=str(error), hint="--device cpu") from None
    finally:
        _chosen.reset(mark)


def chosen() -> str:
    """Return the device on which new `Weights` of this thread compute."""
    return resolve(_chosen.get())


def title(device: str) -> str:
    """Return what people call a device: 'cpu', 'cuda:0 (NVIDIA H200)'."""
    return device if device == CPU else f"{device} ({torch.cuda.get_device_name(device)})"


@contextmanager
def making_tensors(device: str, wide: bool = False) -> Iterator[None]:
    """Let torch make new tensors of this thread on `device`; where `wide`, in float64 instead of float32."""
    with ExitStack() as stack:
        if device != CPU:
            stack.enter_context(torch.device(device))
        if wide:
            stack.enter_context(_in_float64()())
        yield


@cache
def _in_float64() -> Any:
    class InFloat64(torch.overrides.TorchFunctionMode):
        """Turns what torch returns in float32 into float64.

        A cast that asks for `torch.float32` still rounds; `float()`, by which a part of a pass goes back to the type of
        the others, does not.
        """

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.float:
                return args[0].double()
            found = func(*args, **(kwargs or {}))
            return found.double() if isinstance(found, torch.Tensor) and found.dtype is torch.float32 else found

    return InFloat64


def moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Return a tensor of the processor's memory on `device`; a GPU copies it while the processor goes on."""
    return tensor if device == CPU else tensor.pin_memory().to(device, non_blocking=True)
