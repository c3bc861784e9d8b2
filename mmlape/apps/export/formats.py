"""File formats of ``mmlape export --to``. Importing this imports no network: the command's help is made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from .network import Network
    from .selection import Size

INPUT = 'image'  # the name of a file's input
Run = Callable[['np.ndarray'], list['np.ndarray']]


@dataclass(frozen=True)
class Job:
    """An export: the network, its input sizes and the settings to write.

    Attributes:
        network: On the CPU.
        size: Height and width of the input; an example of them with ``any_size``.
        any_batch, any_size: Whether the number of images and their size may vary.
        settings: What a runtime has to know.
        half: Weights in float16.
        calibration: Images for weights and activations in eight bits. Default None: not in eight bits.
    """

    network: Network
    size: Size
    any_batch: bool
    any_size: bool
    settings: dict[str, Any]
    half: bool = False
    calibration: Iterable[np.ndarray] | None = None

    def program(self) -> Any:
        """A new program: ONNX's exporter changes the one that it is given."""
        from .files import export_program

        return export_program(self.network, self.size, self.any_batch, self.any_size)


class FileFormat(NamedTuple):
    """A format of files.

    Attributes:
        suffix: How the file's name ends.
        write: Writes the file of a job; returns how to run it.
        about: A few words for the command's help.
        packages: Packages that it needs, beside mmlape's own requirements.
    """

    suffix: str
    write: Callable[[Job, Path], Run]
    about: str
    packages: tuple[str, ...] = ()


def run_session(session: Any, images: np.ndarray) -> list[np.ndarray]:
    """Outputs of ONNX Runtime; ValueError if it cannot compute images of this size."""
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    try:
        return session.run(None, {INPUT: images})
    except (errors.Fail, errors.InvalidArgument, errors.RuntimeException) as error:
        shape = ' x '.join(map(str, images.shape))
        raise ValueError(
            f'the file does not take images {shape}: export without --dynamic size, a file for each --size ({error})'
        ) from None


def _write_onnx(job: Job, out: Path) -> Run:
    import onnxruntime

    from . import files

    with TemporaryDirectory(dir=out.parent) as folder:
        smaller = job.half or job.calibration is not None
        whole = Path(folder, out.name) if smaller else out
        files.write_onnx(job.program(), job.network, whole, job.settings)
        if job.half:
            files.write_half(whole, out)
        if job.calibration is not None:
            files.write_int8(whole, out, job.calibration)
    files.finish(out)
    session = onnxruntime.InferenceSession(str(out), providers=['CPUExecutionProvider'])
    return partial(run_session, session)


def _write_package(job: Job, out: Path) -> Run:
    from .files import run_package

    return run_package(job.program(), out, job.settings)


# The help of --to and its messages are made from this; ONNX alone has files of other precisions.
FORMATS = {
    'onnx': FileFormat('.onnx', _write_onnx, 'ONNX', ('onnx', 'onnxruntime', 'onnxscript')),
    'pt2': FileFormat('.pt2', _write_package, 'compiled by AOTInductor for this processor'),
}


def check_formats(names: list[str], out: Path, precision: str | None) -> None:
    """Refuse (ValueError) formats that cannot be written to ``out``, in a ``precision`` (an option's name) or here."""
    first = FORMATS[names[0]]
    if out.suffix != first.suffix:
        raise ValueError(f"OUT must end with {first.suffix}, got '{out}'")
    if precision and 'onnx' not in names:
        raise ValueError(f'{precision} does not go with --to {",".join(names)}')
    for name in names:
        if missing := [each for each in FORMATS[name].packages if find_spec(each) is None]:
            raise ValueError(f"install 'mmlape[{name}]': there is no package {', '.join(missing)}")
