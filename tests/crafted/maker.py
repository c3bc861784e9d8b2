"""What makes the files: see the package."""

import pickle

import torch

CODE, CONFIGS, BROKEN, UNFIT, NO_TRAINING, FINE = {}, {}, {}, {}, {}, {}


def crafted(kind, suffix='.pth'):
    """Enter a function that returns what is saved, or writes the file itself and returns None."""

    def enter(function):
        kind[function.__name__] = (function, suffix)
        return function

    return enter


def table(kind, suffix='.pth', /, **functions):
    """Enter several."""
    kind.update({name: (function, suffix) for name, function in functions.items()})


class Call:
    """Pickled, it calls a function when it is loaded, and gives the result a state and items."""

    def __init__(self, function, *arguments, state=None, items=None):
        self.function, self.arguments = function, arguments
        self.state, self.items = state, items

    def __reduce__(self):
        items = iter(self.items.items()) if self.items else None
        return self.function, self.arguments, self.state, None, items

    def __call__(self):
        """What is called when it is loaded must look as if it could be."""


def run(canary):
    """An object that writes the canary when it is unpickled."""
    return Call(exec, code(canary))


def code(canary):
    return f'open({str(canary)!r}, "w").close()'


class Maker:
    """Makes files of what MMEngine's runner has saved: ``state`` fits the model of that training."""

    def __init__(self, folder, training):
        self.folder, self.training = folder, training
        self.path = self.canary = None

    @property
    def whole(self):
        """A copy of the training's checkpoint, to be spoilt."""
        return pickle.loads(pickle.dumps(self.training))

    @property
    def state(self):
        return self.whole['state_dict']

    def make(self, kind, name):
        """The path of the file."""
        function, suffix = kind[name]
        self.path = self.folder / f'{name}{suffix}'
        self.canary = self.folder / f'{name}.canary'
        content = function(self)
        if content is not None:
            torch.save(content, self.path)
        return self.path


def put(owner, value):
    owner['more'] = value
    return owner


def put_into(m, *way):
    """The training's checkpoint with a payload at the end of a way of keys."""
    owner = whole = m.whole
    for key in way:
        owner = owner[key]
    put(owner, run(m.canary))
    return whole


def changed(m, **entries):
    """The training's checkpoint with other weights."""
    return dict(m.whole, state_dict={**m.state, **entries})
