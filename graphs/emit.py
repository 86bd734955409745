"""Writing nodes into a GraphSurgeon graph: one method an operator, names that say where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs

FLOAT32 = np.dtype(np.float32)
INT64 = np.dtype(np.int64)
BOOL = np.dtype(np.bool_)
# Prefix of every constant that the rewrite adds (DESIGN §4).
CONSTANT_PREFIX = "proxy."


def dtype_of(tensor: gs.Tensor) -> np.dtype[Any]:
    """A tensor's NumPy dtype. GraphSurgeon leaves those NumPy has not as ONNX numbers them."""
    dtype = tensor.dtype
    if isinstance(dtype, int):
        dtype = onnx.helper.tensor_dtype_to_np_dtype(dtype)
    result: np.dtype[Any] = np.dtype(dtype)
    return result


class Emitter:
    """Appends nodes below the current scope; equal small constants are shared.

    Constants are named below `prefix`, nodes and tensors are numbered behind `mark`: two emitters
    of one graph need two of each. `dtype` is the graph's floating-point type; `wide` and `narrow`
    convert to float32 and back, and are nothing in a float32 graph.
    """

    def __init__(
        self,
        graph: gs.Graph,
        dtype: np.dtype[Any],
        *,
        prefix: str = CONSTANT_PREFIX,
        mark: str = "p",
    ) -> None:
        self.graph = graph
        self.dtype = dtype
        self._prefix = prefix
        self._mark = mark
        self._scope = ""
        self._count = 0
        self._constants: dict[tuple[str, tuple[int, ...], bytes], gs.Constant] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Name the nodes inside `{name}/{op}_{mark}{number}`."""
        before, self._scope = self._scope, name
        try:
            yield
        finally:
            self._scope = before

    def op(
        self,
        op_type: str,
        *inputs: gs.Tensor,
        dtype: np.dtype[Any] | None = None,
        output: gs.Tensor | None = None,
        **attrs: Any,
    ) -> gs.Tensor:
        """One node with one output of `dtype` (the first input's by default)."""
        name = self._next_name(op_type)
        result = output
        if result is None:
            result = gs.Variable(name, dtype=dtype_of(inputs[0]) if dtype is None else dtype)
        node = gs.Node(op_type, name, attrs, list(inputs), [result])
        self.graph.nodes.append(node)
        return result

    def copy(self, node: gs.Node, inputs: Sequence[gs.Tensor]) -> list[gs.Tensor]:
        """`node` once more, on other inputs; its outputs keep their dtypes."""
        name = self._next_name(node.op)
        outputs = [
            gs.Variable(f"{name}.{i}", dtype=dtype_of(output))
            for i, output in enumerate(node.outputs)
        ]
        self.graph.nodes.append(gs.Node(node.op, name, dict(node.attrs), list(inputs), outputs))
        return list(outputs)

    def constant(self, values: npt.ArrayLike, dtype: np.dtype[Any] = INT64) -> gs.Constant:
        """An inline initializer, shared between equal values."""
        array = np.asarray(values, dtype=dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = f"{self._prefix}constant.{len(self._constants)}"
            self._constants[key] = gs.Constant(name, array)
        return self._constants[key]

    def vector(self, name: str, values: npt.NDArray[Any]) -> gs.Constant:
        """A proxy vector [C] as an initializer `proxy.{name}` of shape [1,1,C]."""
        return self.proxy(name, values.astype(self.dtype).reshape(1, 1, -1))

    def proxy(self, name: str, values: npt.NDArray[Any]) -> gs.Constant:
        """What was made of a proxy, as an initializer `proxy.{name}`."""
        return gs.Constant(f"{CONSTANT_PREFIX}{name}", np.ascontiguousarray(values))

    def wide(self, tensor: gs.Tensor) -> gs.Tensor:
        return self._cast(tensor, FLOAT32)

    def narrow(self, tensor: gs.Tensor) -> gs.Tensor:
        return self._cast(tensor, self.dtype)

    def add(self, a: gs.Tensor, b: gs.Tensor) -> gs.Tensor:
        return self.op("Add", a, b)

    def mul(self, a: gs.Tensor, b: gs.Tensor) -> gs.Tensor:
        return self.op("Mul", a, b)

    def matmul(self, a: gs.Tensor, b: gs.Tensor) -> gs.Tensor:
        return self.op("MatMul", a, b)

    def concat(
        self, tensors: Sequence[gs.Tensor], axis: int, output: gs.Tensor | None = None
    ) -> gs.Tensor:
        return self.op("Concat", *tensors, output=output, axis=axis)

    def transpose(self, tensor: gs.Tensor, perm: Sequence[int]) -> gs.Tensor:
        return self.op("Transpose", tensor, perm=list(perm))

    def unsqueeze(self, tensor: gs.Tensor, *axes: int) -> gs.Tensor:
        return self.op("Unsqueeze", tensor, self.constant(list(axes)))

    def reshape(self, tensor: gs.Tensor, shape: Sequence[int] | gs.Tensor) -> gs.Tensor:
        """`shape` as numbers (0 copies a dimension, -1 infers one) or as a tensor."""
        wanted = shape if isinstance(shape, gs.Tensor) else self.constant(list(shape))
        return self.op("Reshape", tensor, wanted)

    def slice(
        self, tensor: gs.Tensor, start: int | gs.Tensor, end: int | gs.Tensor | None, axis: int
    ) -> gs.Tensor:
        """Bounds as numbers or as [1] tensors; `end` None is the end of the axis."""
        bounds = (start, np.iinfo(np.int64).max if end is None else end)
        first, stop = (b if isinstance(b, gs.Tensor) else self.constant([b]) for b in bounds)
        return self.op("Slice", tensor, first, stop, self.constant([axis]))

    def dimension(self, tensor: gs.Tensor, axis: int) -> gs.Tensor:
        """[1] int64: the size of one axis."""
        shape = self.op("Shape", tensor, dtype=INT64)
        return self.op("Gather", shape, self.constant([axis]), axis=0)

    def arange(self, size: gs.Tensor) -> gs.Tensor:
        """[size] int64: 0, 1, ... of a [1] size."""
        limit = self.op("Squeeze", size, self.constant([0]))
        return self.op("Range", self.constant(0), limit, self.constant(1))

    def _next_name(self, op_type: str) -> str:
        self._count += 1
        return f"{self._scope}/{op_type}_{self._mark}{self._count}"

    def _cast(self, tensor: gs.Tensor, dtype: np.dtype[Any]) -> gs.Tensor:
        if dtype_of(tensor) == dtype:
            return tensor
        return self.op(
            "Cast", tensor, dtype=dtype, to=int(onnx.helper.np_dtype_to_tensor_dtype(dtype))
        )
