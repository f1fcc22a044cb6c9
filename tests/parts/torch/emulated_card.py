"""A graphics card that is none: what is written for one runs where there is none, and fails where it would fail there.

Its tensors are torch's own, of the device `cuda:0`, over memory of the processor: the dispatcher, autograd, views and
storages treat them as a card's. Each operation that would launch a kernel comes to `Card.launched`, which computes it
on the processor in the same memory. `torch.cuda` itself is untouched and checks its arguments; what it asks of the
driver (`torch._C`) is answered here. All threads see the card.

What runs here without a fault
- never brings tensors of the processor and of the card together where a card refuses it;
- calls `torch.cuda` with arguments that it takes;
- reads no memory that was never written (it is NaN here), and waits for the card as often as `Card.waits` says;
- asks no kernel for an index that there is not, after which a card does nothing any more;
- records passes (CUDA graphs) in which nothing waits for the card or comes from the processor, and which are right when
  the same kernels run again on the same addresses, all of which are still in use.

What it cannot tell: how fast anything is, what kernels of a card round, whether there is one for a shape and a number
format, how much memory is needed, and races between streams or threads: all is computed when it is asked for. Where
torch chooses other kernels for a card (attention, sorting), the processor's are computed; attention as on a processor
with `torch.backends.cuda.enable_flash_sdp(False)`.

It is made for torch 2.13 without CUDA. What it needs of torch's inside is in `_known_to_torch` and `_reported_as`.
"""

import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch._dynamo  # which looks only once, when it is imported, whether there is a card
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.multiprocessing.reductions import StorageWeakRef

aten = torch.ops.aten

FREE, TOTAL = 2**30, 2**31
"""Bytes that the card says it has."""


# ---- memory ------------------------------------------------------------------------------------------------------

_CPU, _CUDA = 1, 2  # as dlpack.h numbers them
_address = ctypes.pythonapi.PyCapsule_GetPointer
_address.restype, _address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _reported_as(kind: int, tensor: Tensor) -> Tensor:
    """The same memory, as of the other kind of device."""
    capsule = torch._C._to_dlpack(tensor.detach())
    device = _address(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
    (ctypes.c_int32 * 2).from_address(device)[:] = (kind, 0)
    return torch._C._from_dlpack(capsule)


def _on_card(tensor: Tensor) -> Tensor:
    return _reported_as(_CUDA, tensor)


def _beside(tensor: Tensor) -> Tensor:
    """What kernels get: of a card's tensor the same memory as the processor's; one without any can be made longer."""
    if not tensor.is_cuda:
        return tensor
    return _reported_as(_CPU, tensor) if tensor.numel() else torch.empty(tensor.shape, dtype=tensor.dtype)


def _each(change: Callable[[Tensor], Any], value: Any) -> Any:
    """Arguments with every tensor in them changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) or (isinstance(value, list) and value and not isinstance(value[0], int)):
        return [one if one is None or isinstance(one, int) else _each(change, one) for one in value]
    return {name: _each(change, one) for name, one in value.items()} if isinstance(value, dict) else value


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _each(found.append, value)
    return found


# ---- kernels -----------------------------------------------------------------------------------------------------


def _sums_in(left: Tensor, right: Tensor, out_dtype: torch.dtype) -> Tensor:
    """`mm` of two 16-bit matrices with a result of 32 bits, which a processor does not have."""
    if left.dtype is not right.dtype or left.dtype not in (torch.bfloat16, torch.float16):
        raise RuntimeError(f"mm of {left.dtype} and {right.dtype}: input dtypes must be the same, and of 16 bits here")
    if out_dtype is not torch.float32:
        raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
    return torch.mm(left.to(out_dtype), right.to(out_dtype))


def _each_channel_alone(
    x: Tensor, weight: Tensor, size: Any, bias: Any, stride: Any, padding: Any, dilation: Any
) -> Tensor:
    """A convolution for which a card has a kernel of its own."""
    return torch.conv2d(x, weight, bias, stride, padding, dilation, groups=x.shape[1])


def _counts(x: Tensor, *bins: Any) -> Tensor:
    """A card counts whole numbers too."""
    return torch.histc(x.double(), *bins).to(x.dtype)


_KERNELS = {
    aten.mm.dtype: _sums_in,
    aten._conv_depthwise2d.default: _each_channel_alone,
    aten.histc.default: _counts,
}

_OF_ALL_DEVICES = (aten.copy_.default, aten._grouped_mm.default)
"""What torch begins in one way for all devices, and then does without asking the dispatcher again; and what it has a
kernel for where it is built for cards.
"""

_EMPTY = ("aten::empty", "aten::empty_strided")
_INDEXING = ("aten::index", "aten::index_put_", "aten::_index_put_impl_")
_WAITING = (
    "aten::_local_scalar_dense",
    "aten::_unique2",
    "aten::bincount",
    "aten::equal",
    "aten::masked_select",
    "aten::nonzero",
    "aten::repeat_interleave",
)
"""The card has to have computed it before torch knows the number or the shape that comes out."""


class _Facts(NamedTuple):
    """What the schema of an operation says: whether it tells memory in another way, which arguments are tensors, which
    it writes to, which results are such arguments, and whether it may take a number of the processor."""

    view: bool
    tensors: tuple[bool, ...]
    written: tuple[tuple[int, str], ...]
    returned: tuple[bool, ...]
    by_element: bool


@cache
def _facts(op: Any) -> _Facts:
    schema = op._schema
    packet = getattr(aten, schema.name.removeprefix("aten::"))
    return _Facts(
        any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
        or op is aten.set_.source_Storage_storage_offset,
        tuple(str(one.type) in ("Tensor", "Optional[Tensor]") for one in schema.arguments),
        tuple(
            (place, one.name)
            for place, one in enumerate(schema.arguments)
            if one.alias_info is not None and one.alias_info.is_write
        ),
        tuple(one.alias_info is not None for one in schema.returns),
        schema.name in (*_INDEXING, "aten::fill_", "aten::floor_divide")
        or any(torch.Tag.pointwise in getattr(packet, name).tags for name in packet.overloads()),
    )


def _written(op: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that it writes to."""
    places = _facts(op).written
    return [args[place] if place < len(args) else kwargs[name] for place, name in places]


class Card:
    """What has been asked of it: how many kernels, and by name what it had to be waited for."""

    def __init__(self) -> None:
        self.kernels, self.replays = 0, 0
        self.waits: Counter[str] = Counter()
        self.recording: _Graph | None = None
        self._here = threading.local()
        self._broken = False

    @property
    def stream(self) -> int:
        """The current stream of this thread: 0 is the default."""
        return getattr(self._here, "stream", 0)

    @stream.setter
    def stream(self, stream: int) -> None:
        self._here.stream = stream

    def is_recording(self) -> bool:
        """Whether the current stream of this thread is recorded."""
        return self.recording is not None and self.recording.is_here()

    def launched(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """An operation that has a kernel of its own on a card."""
        facts, graph = _facts(op), self.recording if self.is_recording() else None
        if facts.view:
            return op.redispatch(_PROCESSOR, *args, **kwargs)
        args = tuple(_as_declared(one, tensor) for one, tensor in zip(args, facts.tensors, strict=False))
        tensors = _tensors((args, kwargs))
        if not all(one.is_cuda for one in tensors):
            _refuse_mixing(op, args, kwargs)
        self._wait_for(op, args, graph)
        self.kernels += 1
        if "device" in kwargs:
            kwargs["device"] = _HOST
        beside = {id(one): _beside(one) for one in tensors}
        given = _each(lambda one: beside[id(one)], (args, kwargs))
        found = self.computed(op, *given) if graph is None else graph.note(op, args, kwargs, beside)
        written = _written(op, args, kwargs)
        for one in _tensors(written) if written else ():
            _lengthen(one, beside[id(one)])
        results = found if isinstance(found, list | tuple) else [found] * len(facts.returned)
        kept = iter(written)
        reported = [
            next(kept) if same else _each(_on_card, one) for one, same in zip(results, facts.returned, strict=True)
        ]
        return reported[0] if len(reported) == 1 else tuple(reported) or None

    def computed(self, op: Any, args: Any, kwargs: Any) -> Any:
        """What comes out, from tensors of the processor."""
        if self._broken:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        try:
            found = _KERNELS.get(op, op)(*args, **kwargs)
        except (IndexError, RuntimeError) as fault:
            self._broken = "out of range" in str(fault) or "out of bounds" in str(fault)
            raise
        return found.fill_(torch.nan) if op._schema.name in _EMPTY and found.is_floating_point() else found

    def _wait_for(self, op: Any, args: Any, graph: "_Graph | None") -> None:
        name, transfer = op._schema.name, op is aten.copy_.default
        indices = _tensors(args[1]) if name in _INDEXING else []
        is_grouped = op is aten._grouped_mm.default and args[0].dtype is not torch.bfloat16  # the only kernel there is
        waits = is_grouped or name in _WAITING or any(not one.is_cuda or one.dtype is torch.bool for one in indices)
        if not waits and not (transfer and args[0].device != args[1].device):
            return
        if graph is None:
            self.waits[name.removeprefix("aten::")] += 1
            return
        graph.invalid |= not transfer  # which torch refuses before it asks the driver
        raise torch.AcceleratorError(f"CUDA error: operation not permitted when stream is capturing ({name})")


_PROCESSOR, _HOST = DispatchKeySet(DispatchKey.CPU), torch.device("cpu")


def _as_declared(value: Any, tensor: bool) -> Any:
    """The dispatcher gives a number in the place of a tensor that stands for one of Python."""
    return torch.tensor(value) if tensor and isinstance(value, int | float) else value


def _refuse_mixing(op: Any, args: Any, kwargs: Any) -> None:
    if op is aten.copy_.default:
        return
    given = [args[0], *args[2:], kwargs] if op._schema.name in _INDEXING else [args, kwargs]
    if any(not one.is_cuda and (one.dim() or not _facts(op).by_element) for one in _tensors(given)):
        raise RuntimeError(f"Expected all tensors to be on the same device, but {op} got cuda:0 and cpu")


def _lengthen(tensor: Tensor, beside: Tensor) -> None:
    """Where a kernel has made room for its result, `tensor` gets that."""
    if tensor.is_cuda and tensor.shape != beside.shape:
        storage, shape = _on_card(beside).untyped_storage(), beside.shape
        aten.set_.source_Storage_storage_offset.redispatch(_PROCESSOR, tensor, storage, 0, shape, beside.stride())


# ---- graphs ------------------------------------------------------------------------------------------------------


class _Place:
    """Where a tensor lies that was there before the recording, which does not keep it."""

    def __init__(self, tensor: Tensor) -> None:
        self._storage = StorageWeakRef(tensor.untyped_storage())
        self._at, self._dtype = tensor.data_ptr(), tensor.dtype
        self._shape, self._strides = tensor.shape, tensor.stride()

    def tensor(self) -> Tensor:
        if self._storage.expired():
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        count = 1 + sum((size - 1) * step for size, step in zip(self._shape, self._strides, strict=True))
        memory = (ctypes.c_char * (count * self._dtype.itemsize)).from_address(self._at)
        return torch.frombuffer(memory, dtype=self._dtype).as_strided(self._shape, self._strides)


class _Graph:
    """What one thread launches on a stream while it is recorded: nothing of it is computed by then."""

    def __init__(self, card: Card) -> None:
        self._card, self._thread, self._stream = card, threading.get_ident(), card.stream
        self._launched: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._own: set[int] = set()
        self._before: list[tuple[Tensor, Tensor]] = []
        self.invalid = False

    def is_here(self) -> bool:
        return (self._thread, self._stream) == (threading.get_ident(), self._card.stream)

    def note(self, op: Any, args: Any, kwargs: Any, beside: Mapping[int, Tensor]) -> Any:
        """Compute it for the shapes of its results; what it writes to is put back in the end."""

        def kept(one: Tensor) -> Any:
            own = one.untyped_storage().data_ptr() in self._own
            return beside[id(one)] if own or not (one.is_cuda and one.numel()) else _Place(one)

        noted = _each(kept, args), _each(kept, kwargs)
        written = [beside[id(one)] for one in _tensors(_written(op, args, kwargs))]
        made = [one for one in written if not one.numel()]
        self._before += [(one, one.clone()) for one in written if one.numel()]
        found = self._card.computed(op, *_each(lambda one: beside[id(one)], (args, kwargs)))
        fresh = [] if written else _tensors(found)
        self._own.update(one.data_ptr() for one in (*made, *fresh))
        self._launched.append((op, *noted, fresh))
        return found

    def end(self) -> None:
        for tensor, before in reversed(self._before):
            tensor.copy_(before)
        self._before.clear()
        for *_, fresh in self._launched:
            for one in fresh:
                one.fill_(torch.nan if one.is_floating_point() else 0)

    def replay(self) -> None:
        for op, args, kwargs, fresh in self._launched:
            again = self._card.computed(op, _there(args), _there(kwargs))
            for old, new in zip(fresh, _tensors(again) if fresh else (), strict=True):
                old.copy_(new)


def _there(value: Any) -> Any:
    if isinstance(value, _Place):
        return value.tensor()
    if isinstance(value, list):
        return [_there(one) for one in value]
    return {name: _there(one) for name, one in value.items()} if isinstance(value, dict) else value


# ---- what torch.cuda asks of the driver ----------------------------------------------------------------------------

_POOL = (0, 1)
_NAMES = iter(range(1, 2**31))


class _Stream:
    def __new__(cls, priority: int = 0, stream_id: int | None = None, **known: int) -> Any:
        stream: Any = object.__new__(cls)
        stream.stream_id = stream.cuda_stream = next(_NAMES) if stream_id is None else stream_id
        stream.device_index, stream.device_type = known.get("device_index", 0), known.get("device_type", 1)
        stream.device = torch.device("cuda", stream.device_index)
        return stream

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __eq__(self, other: Any) -> bool:
        return bool(self.stream_id == other.stream_id)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        torch.cuda.synchronize()


class _Event:
    def __new__(cls, *_: Any, **__: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, stream: Any) -> None:
        assert isinstance(stream, torch.cuda.Stream)

    def wait(self, stream: Any) -> None:
        assert isinstance(stream, torch.cuda.Stream)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        torch.cuda.synchronize()


def _graph_class(card: Card) -> type:
    class CUDAGraph:
        def __new__(cls, keep_graph: bool = False) -> Any:
            return object.__new__(cls)

        def __init__(self, keep_graph: bool = False) -> None: ...

        def capture_begin(self, pool: Any = _POOL, capture_error_mode: str = "global") -> None:
            assert pool == _POOL
            assert capture_error_mode in ("global", "thread_local", "relaxed")
            assert card.recording is None, "another thread records"
            assert card.stream, "CUDA graphs must be captured on a non-default stream"
            card.recording = self.recorded = _Graph(card)

        def capture_end(self) -> None:
            assert self.recorded.is_here(), "Capture must end on the same stream it began on"
            card.recording = None
            self.recorded.end()
            if self.recorded.invalid:
                raise torch.AcceleratorError("CUDA error: operation failed due to a previous error during capture")

        def replay(self) -> None:
            card.replays += 1
            self.recorded.replay()

    return CUDAGraph


def _driver(card: Card) -> dict[str, Any]:
    """By their names in `torch._C`."""
    return {
        "_get_accelerator": lambda check=None: torch.device("cuda"),
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_getDevice": lambda: 0,
        "_cuda_setDevice": lambda index: None,
        "_cuda_synchronize": lambda: card.waits.update(["synchronize"]),
        "_cuda_getCurrentStream": lambda index: (card.stream, index, 1),
        "_cuda_getDefaultStream": lambda index: (0, index, 1),
        "_cuda_setStream": lambda stream_id, device_index, device_type: setattr(card, "stream", stream_id),
        "_cuda_emptyCache": lambda: None,
        "_host_emptyCache": lambda: None,
        "_cuda_memoryStats": lambda index: {"allocated_bytes": {"all": {"current": 2**20, "peak": 2**21}}},
        "_cuda_resetPeakMemoryStats": lambda index: None,
    }


@contextmanager
def emulated_card() -> Iterator[Card]:
    """A machine with one card."""
    card, cuda = Card(), torch.cuda
    runtime = SimpleNamespace(cudaMemGetInfo=lambda index: (FREE, TOTAL))
    chip = SimpleNamespace(name="none", major=9, minor=0, total_memory=TOTAL, multi_processor_count=1)
    with ExitStack() as stack:
        stack.enter_context(_known_to_torch())
        stack.enter_context(_kernels_of(card))

        def put(place: Any, **values: Any) -> None:
            for name, value in values.items():
                stack.enter_context(patch.object(place, name, value, create=True))

        put(torch._C, **_driver(card))
        put(torch.autograd, backward=_in_one_thread(torch.autograd.backward))
        put(torch.backends.cuda, is_built=lambda: True)
        put(cuda.graphs, _graph_pool_handle=lambda: _POOL, _cuda_isCurrentStreamCapturing=card.is_recording)
        put(cuda, _lazy_init=lambda: None, _initialized=True, _cudart=runtime, default_generators=(torch.Generator(),))
        put(cuda, _cached_device_count=None)
        put(cuda, _exchange_device=lambda index: 0, _maybe_exchange_device=lambda index: 0)
        put(cuda, _get_device_properties=lambda index: chip)
        for theirs, ours in ((cuda.Stream, _Stream), (cuda.Event, _Event), (cuda.CUDAGraph, _graph_class(card))):
            put(theirs.__mro__[1], **{name: value for name, value in vars(ours).items() if callable(value)})
        yield card


@contextmanager
def _kernels_of(card: Card) -> Iterator[None]:
    rest, some = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    try:
        rest.fallback(card.launched, "CUDA")
        for op in _OF_ALL_DEVICES:
            some.impl(op, partial(card.launched, op), "CUDA")
        yield
    finally:
        rest._destroy()
        some._destroy()


def _in_one_thread(backward: Callable[..., None]) -> Callable[..., None]:
    """Autograd makes a thread for each card that there is when it is first asked, and for none that comes later."""

    def called(*args: Any, **kwargs: Any) -> None:
        with torch.autograd.set_multithreading_enabled(False):
            backward(*args, **kwargs)

    return called


_GUARDS, _HOOKS = "_ZN3c104impl26device_guard_impl_registryE", "_ZN2at6detail12getCUDAHooksEv"
_LAZY, _IS_BUILT, _HAS_PRIMARY_CONTEXT = 17, 2, 4
_ANSWER = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int)


@contextmanager
def _known_to_torch() -> Iterator[None]:
    """Let torch's own code in C++ take a card for a device that is there, and on which nothing needs to be switched.

    There is no other way than through its memory. A guard for cards it makes itself where the one that it has knows of
    none, as that of another device (`Lazy`) does. Whether it was built for cards it asks an object by a table of
    functions: this gets a copy of the table with two functions in the places that torch 2.13 gives them.
    """
    libraries = Path(torch.__file__).parent / "lib"
    guards = (ctypes.c_void_p * 20).in_dll(ctypes.CDLL(str(libraries / "libc10.so")), _GUARDS)
    hooks = ctypes.CDLL(str(libraries / "libtorch_cpu.so"))[_HOOKS]
    hooks.restype = ctypes.c_void_p
    table_of_hooks = ctypes.c_void_p.from_address(hooks())
    before = table_of_hooks.value
    assert before is not None
    table = (ctypes.c_void_p * 64).from_buffer_copy((ctypes.c_void_p * 64).from_address(before))
    answers = {_IS_BUILT: _ANSWER(lambda *_: True), _HAS_PRIMARY_CONTEXT: _ANSWER(lambda *_: False)}
    for place, answer in answers.items():
        table[place] = ctypes.cast(answer, ctypes.c_void_p).value
    guards[1] = guards[_LAZY]
    torch._C._ensureCUDADeviceGuardSet()
    table_of_hooks.value = ctypes.addressof(table)
    try:
        yield
    finally:
        table_of_hooks.value, guards[1] = before, None
