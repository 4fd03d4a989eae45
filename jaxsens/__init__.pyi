"""The public names of jaxsens, each with the module that defines it."""

from . import languages as languages
from . import logic as logic
from . import theory as theory
from .constructions.catalogue import construction as construction
from .constructions.compiled import CompiledTransformer as CompiledTransformer
from .constructions.compiler import compile_formula as compile_formula
from .constructions.soften import soften as soften
from .errors import EngineRefusal as EngineRefusal
from .errors import EstimateWarning as EstimateWarning
from .errors import InputError as InputError
from .errors import PrecisionWarning as PrecisionWarning
from .errors import ProcessLost as ProcessLost
from .languages.named import language as language
from .models.baselines import LSTM as LSTM
from .models.baselines import RNN as RNN
from .models.baselines import Convolution as Convolution
from .models.baselines_config import ConvolutionConfig as ConvolutionConfig
from .models.baselines_config import LSTMConfig as LSTMConfig
from .models.baselines_config import RNNConfig as RNNConfig
from .models.config import TransformerConfig as TransformerConfig
from .models.layered import Attention as Attention
from .models.layered import Layered as Layered
from .models.torch_model import from_torch as from_torch
from .models.transformer import Transformer as Transformer
from .models.weighting import Softmax as Softmax
from .pretrained.load import load_pretrained as load_pretrained
from .pretrained.log_probability import log_probability as log_probability
from .pretrained.model import PretrainedModel as PretrainedModel
from .search.result import SearchInterrupted as SearchInterrupted
from .search.result import WorstInput as WorstInput
from .search.result import load_worst_input as load_worst_input
from .search.worst_input import worst_input as worst_input
from .sensitivity.candidates import deletion as deletion
from .sensitivity.candidates import insertion as insertion
from .sensitivity.candidates import masking as masking
from .sensitivity.candidates import neighbours as neighbours
from .sensitivity.candidates import repetition as repetition
from .sensitivity.concat import concat as concat
from .sensitivity.explain import explain as explain
from .sensitivity.flip_sensitivity import flip_sensitivity as flip_sensitivity
from .sensitivity.flips import sample as sample
from .sensitivity.layer_changes import layer_changes as layer_changes
from .sensitivity.placement import global_mesh as global_mesh
from .sensitivity.result import FlipSensitivity as FlipSensitivity
from .sensitivity.result import load_result as load_result
from .sensitivity.resuming import MeasurementInterrupted as MeasurementInterrupted
from .training.checkpoints import TrainedModel as TrainedModel
from .training.checkpoints import load_checkpoint as load_checkpoint
from .training.config import TrainConfig as TrainConfig
from .training.events import TrainingDiverged as TrainingDiverged
from .training.events import TrainingInterrupted as TrainingInterrupted
from .training.loop import train as train

__version__: str
__all__: list[str]
