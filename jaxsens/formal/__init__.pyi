"""The public names of `jaxsens.formal`, each with the module that defines it."""

from . import languages as languages
from . import logic as logic
from .constructions.compiler import CompiledTransformer as CompiledTransformer
from .constructions.soften import soften as soften
