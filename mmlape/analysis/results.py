"""What results have in common."""

from __future__ import annotations

import numpy as np


class Result:
    """A dataclass of arrays and what describes them."""

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it for ``numpy.savez``."""
        return {name: np.asarray(value) for name, value in vars(self).items()}
