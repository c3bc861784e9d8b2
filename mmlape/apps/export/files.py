"""Write exported networks: ONNX in float32, in half precision or in eight bits, and packages of PyTorch."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmlape.runtime.private import compiled_package

from .formats import INPUT
from .network import Network
from .selection import Size

METADATA = 'mmlape'  # the key of what a runtime has to know, as JSON
_WEIGHTED = ('Conv', 'ConvTranspose', 'Gemm', 'MatMul')
_LARGEST = 1_900_000_000  # bytes of weights in one file of protocol buffers, which end at 2 GiB


def export_program(network: Network, size: Size, batch: bool, sizes: bool) -> Any:
    """A ``torch.export`` program of a :class:`~mmlape.apps.export.network.Network`.

    Args:
        network: On the CPU.
        size: Height and width of the input.
        batch: For any number of images, else for one.
        sizes: For any height and width; ``size`` is an example then.

    Raises:
        ValueError: If its computation depends on the size beyond what a graph can hold.
    """
    if sizes:  # with equal or round sides, a graph may mix them up
        size = (size[0] // 32 * 32 + 33, size[1] // 32 * 32 + 91)
    dynamic: dict[int, Any] = {0: torch.export.Dim('batch', min=1)} if batch else {}
    if sizes:
        for axis, name, least in zip((2, 3), ('height', 'width'), network.least or (64, 64)):
            dynamic[axis] = torch.export.Dim(name, min=max(least, 64))
    image = torch.rand(2 if batch else 1, network.channels or 3, *size) * 255
    try:
        with torch.no_grad():
            return torch.export.export(
                network,
                (image,),
                dynamic_shapes={INPUT: dynamic or None},
                strict=False,
                # Most are true of every size, which the solver does not see; the files are compared at other sizes.
                prefer_deferred_runtime_asserts_over_guards=sizes,
            )
    except Exception as error:
        if not sizes:
            raise
        raise ValueError(
            'this model cannot be exported for all image sizes at once: export a file for each size, with '
            f'--size HEIGHTxWIDTH several times ({" ".join(str(error).split())[:200]})'
        ) from error


def write_onnx(program: Any, network: Network, path: Path, settings: dict) -> None:
    """Write an ONNX file, with ``settings`` in its metadata; weights of over 1.9 GB go into a file beside it."""
    # Decomposing takes gradients of what was exported without them, such as bias tables in an attention.
    with _quiet(), torch.no_grad():
        onnx: Any = torch.onnx.export(
            program,
            (),
            input_names=[INPUT],
            output_names=list(network.outputs),
            dynamo=True,
            verbose=False,
        )
        onnx.model.metadata_props[METADATA] = json.dumps(settings)
        size = sum(each.numel() * each.element_size() for each in program.state_dict.values())
        onnx.save(str(path), external_data=size > _LARGEST)


def finish(path: Path) -> None:
    """Remove where in the code each node comes from, which takes megabytes."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    for node in model.graph.node:
        del node.metadata_props[:]
    onnx.save(model, str(path))


def run_package(
    program: Any, path: Path, settings: dict | None = None
) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Compile with AOTInductor into a package (.pt2) for this kind of processor, which needs a C++ compiler; how to run
    it. ``settings`` (default: none) go into its metadata."""
    package = compiled_package(program, str(path), {METADATA: json.dumps(settings or {})})

    def run(images: np.ndarray) -> list[np.ndarray]:
        found = package(torch.from_numpy(np.ascontiguousarray(images)))  # it trusts the strides
        return [each.numpy() for each in (found if isinstance(found, (tuple, list)) else [found])]

    return run


def write_half(path: Path, out: Path) -> None:
    """Write the file with weights in float16: convolutions and products with weights compute in it, everything else
    (norms, softmax, boxes) in float32. Input and outputs keep their types.

    onnxruntime's converter writes files that onnxruntime refuses where most operators stay in float32.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(str(path))
    weighted = _with_weights(model)
    chosen = {id(node) for node in weighted}
    tensors = {each.name: each for each in model.graph.initializer}
    elsewhere = {
        name for node in model.graph.node if id(node) not in chosen for name in node.input
    } | {each.name for each in model.graph.output}
    nodes, halves = [], dict[str, str]()
    for node in model.graph.node:
        if id(node) not in chosen:
            nodes.append(node)
            continue
        for number, name in enumerate(node.input):
            if name and name not in halves:
                halves[name] = f'{name}_half'
                if name in tensors:
                    value = numpy_helper.to_array(tensors[name]).astype(np.float16)
                    model.graph.initializer.append(numpy_helper.from_array(value, halves[name]))
                else:
                    nodes.append(
                        helper.make_node('Cast', [name], [halves[name]], to=TensorProto.FLOAT16)
                    )
            if name:
                node.input[number] = halves[name]
        (output,) = node.output
        node.output[0] = f'{output}_in_half'
        nodes += [
            node,
            helper.make_node('Cast', [node.output[0]], [output], to=TensorProto.FLOAT),
        ]
    unused = [each for name, each in tensors.items() if name in halves and name not in elsewhere]
    for each in unused:
        model.graph.initializer.remove(each)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, str(out))


def write_int8(path: Path, out: Path, images: Iterable[np.ndarray]) -> None:
    """Write the file with the backbone's and neck's products with weights in eight bits, per channel, static.

    Scales of activations are calibrated on ``images`` ``(B, C, H, W)``. Sums, softmax, norms and heads stay in
    float32.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.batches = iter(images)

        def get_next(self) -> dict | None:
            batch = next(self.batches, None)
            return None if batch is None else {INPUT: batch}

    model = onnx.load(str(path))
    inner = [
        node.name
        for node in _with_weights(model)
        if any(f'.{part}.' in _scope(node) for part in ('backbone', 'neck'))
    ]
    with _quiet():
        quantize_static(
            str(path),
            str(out),
            Reader(),
            per_channel=True,
            nodes_to_quantize=inner,
            op_types_to_quantize=['MatMul', 'Conv', 'Gemm'],
            weight_type=QuantType.QInt8,
            activation_type=QuantType.QInt8,
        )


def _with_weights(model: Any) -> list:
    """Nodes whose second input is a parameter."""
    names = {each.name for each in model.graph.initializer}
    return [
        node
        for node in model.graph.node
        if node.op_type in _WEIGHTED and any(name in names for name in node.input[1:2])
    ]


def _scope(node: Any) -> str:
    found = {each.key: each.value for each in node.metadata_props}
    return found.get('pkg.torch.onnx.name_scopes', '')


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's notes on single operators."""
    loggers = [
        logging.getLogger(name) for name in ('onnx_ir', 'onnxscript', 'torch.onnx', 'root', '')
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
