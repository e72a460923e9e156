"""Names for types that every room uses; each is defined here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Columns = dict[str, Array]  # arrays by name: rows that are stored, a batch, a recurrent state, a network's weights
Arrays = Mapping[str, Array]  # the same where it is only read
Values = (
    Any  # a numpy array, or a tensor: code that takes either works on what it is given and copies nothing between them
)
