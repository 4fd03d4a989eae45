"""What is measured of a change: the objects of `measure`, each with its formula, unit and label.

They load JAX only where something is measured, so that help and the reading of arguments stay fast.
"""

from __future__ import annotations

from .decisions import MEDIAN as MEDIAN
from .decisions import Decision as Decision
from .decisions import balancing_threshold as balancing_threshold
from .distances import KL as KL
from .distances import Cosine as Cosine
from .functions import Comparison as Comparison
from .functions import Function as Function
from .functions import LogProbability as LogProbability
from .measure import Measure as Measure
from .norms import L1 as L1
from .norms import L2 as L2
from .norms import LInf as LInf
from .norms import Norm as Norm
from .norms import read_norm as read_norm
