"""The public names of `jaxsens.pretrained`, each with the module that defines it."""

from .corpus import CorpusRow as CorpusRow
from .families.architecture import Architecture as Architecture
from .load import ModelChanges as ModelChanges
from .model import DescribedModel as DescribedModel
from .model import PretrainedModel as PretrainedModel
