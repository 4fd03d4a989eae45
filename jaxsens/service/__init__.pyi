"""The public names of `jaxsens.service`, each with the module that defines it."""

from .client import Client as Client
from .client import ServiceError as ServiceError
