"""Types of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
AnyIntegers = NDArray[np.signedinteger[Any]]
Mask = NDArray[np.bool_]
