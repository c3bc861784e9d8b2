"""The package: code from ``mmlape/``; configs, tools, pages and model index travel in it as ``mmlape/.mim/``, MIM's
place, where a clone has links to them."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# What stays at home: setup_env sets up a clone; of the docs, all but the pages themselves.
SHIPPED = {
    'configs': (),
    'tools': ('setup_env',),
    'docs': ('*.py', '_build', 'api', 'images', 'site', 'static'),
}
MODEL_INDEX = 'model-index.yml'


class BuildPyWithConfigs(build_py):
    """Copies configs, tools and pages into the build folder, never into the source tree."""

    def run(self):
        super().run()
        if self.editable_mode:  # an editable install reads them from the clone
            return
        for folder, left_out in SHIPPED.items():
            target = Path(self.build_lib, 'mmlape', '.mim', folder)
            shutil.rmtree(target, ignore_errors=True)
            if (ROOT / folder).is_dir():
                ignore = shutil.ignore_patterns('__pycache__', '*.pyc', *left_out)
                shutil.copytree(ROOT / folder, target, ignore=ignore)
        if (ROOT / MODEL_INDEX).is_file():
            shutil.copy(ROOT / MODEL_INDEX, Path(self.build_lib, 'mmlape', '.mim', MODEL_INDEX))


def read(name: str) -> str:
    path = ROOT / name
    return path.read_text(encoding='utf-8') if path.is_file() else ''


def version() -> str:
    return re.search(r"__version__ = '(.+)'", read('mmlape/version.py')).group(1)


# Of both families, with what the demo's data are made of. torch is tested up to 2.15.
COMMON = ['torch>=2.6,<2.16', 'torchvision', 'timm>=1.0.3', 'scikit-learn']
EXTRAS = {
    'onedl': [
        *COMMON,
        'onedl-mmengine>=0.10.12',
        'onedl-mmcv>=2.3.6',
        'onedl-mmdetection>=3.5.1',
        'onedl-mmsegmentation>=1.4.2',
    ],
    'openmmlab': [
        *COMMON,
        'mmengine==0.10.7',
        'mmcv>=2.1.0,<2.2.0',
        'mmdet>=3.3.0',
        'mmsegmentation>=1.2.2',
        'ftfy',  # which mmsegmentation imports and does not ask for
        'regex',
    ],
    # MMPretrain, for configs/imagenet and configs/cifar; pretrain-openmmlab goes with the original packages.
    'pretrain': ['onedl-mmpretrain>=1.3.6'],
    'pretrain-openmmlab': ['mmpretrain>=1.2.0,<1.3.0'],
    'onnx': ['onnx', 'onnxruntime', 'onnxscript'],
    'demo': ['scikit-learn'],
    'log': ['tensorboard'],
    # A resolver that takes a newer pillow falls back to gradio 3.
    'app': ['gradio>=6.31', 'pillow<13'],
    # The maintained fork of imagecorruptions, under its import name.
    'robustness': ['imagecorruptions-imaug>=1.1.5'],
    'dev': ['codespell', 'mypy', 'ruff'],
    'docs': ['furo', 'myst-parser', 'sphinx', 'sphinx-copybutton'],
}
EXTRAS['test'] = [
    'hypothesis', 'ipykernel', 'nbclient',
    'psutil', 'pytest', 'pytest-randomly', 'pytest-timeout', 'pytest-xdist',
]  # fmt: skip
for used in ('app', 'demo', 'docs', 'log', 'onnx', 'robustness'):
    EXTRAS['test'] += EXTRAS[used]

setup(
    name='mmlape',
    version=version(),
    description='Layer-adaptive position embedding, dynamic token normalization and Gabor position '
    'encoding for MMDetection and MMSegmentation',
    long_description=read('README.md'),
    long_description_content_type='text/markdown',
    author='the mmlape authors',
    license='Apache-2.0',
    python_requires='>=3.10',
    packages=find_packages(include=['mmlape', 'mmlape.*']),
    package_data={
        'mmlape': ['models/*'],
        'mmlape.cpu': ['csrc/*.cpp', 'csrc/*.h'],  # compiled on the machine that uses it
    },
    # Only what cannot replace a part of the user's stack, and no gigabytes that do not work alone: the OpenMMLab
    # packages exist under two distribution names with the same import names, so they and PyTorch are extras.
    install_requires=['numpy', 'safetensors'],
    extras_require=EXTRAS,
    cmdclass={'build_py': BuildPyWithConfigs},
    entry_points={'console_scripts': ['mmlape = mmlape.__main__:main']},
    zip_safe=False,
    classifiers=[
        'Development Status :: 5 - Production/Stable',
        'Intended Audience :: Science/Research',
        'Programming Language :: Python :: 3',
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
        'Programming Language :: Python :: 3.13',
        'Programming Language :: Python :: 3.14',
        'Topic :: Scientific/Engineering :: Image Recognition',
    ],
)
