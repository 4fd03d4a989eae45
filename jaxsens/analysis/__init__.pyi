"""The public names of `jaxsens.analysis`, each with the module that defines it."""

from .row_changes import RowChanges as RowChanges
from .row_changes import influence_matrix as influence_matrix
from .row_changes import layer_changes as layer_changes
from .statistics import AttentionStatistics as AttentionStatistics
from .statistics import attention_statistics as attention_statistics
from .temperatures import CriticalTemperatures as CriticalTemperatures
from .temperatures import critical_inverse_temperature as critical_inverse_temperature
from .temperatures import critical_temperatures as critical_temperatures
