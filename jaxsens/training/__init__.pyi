"""The public names of `jaxsens.training`, each with the module that defines it."""

from .baselines import LSTM as LSTM
from .baselines import RNN as RNN
from .baselines import Convolution as Convolution
from .baselines import ConvolutionConfig as ConvolutionConfig
from .baselines import LSTMConfig as LSTMConfig
from .baselines import RNNConfig as RNNConfig
from .checkpoints import TrainedModel as TrainedModel
from .checkpoints import load_checkpoint as load_checkpoint
from .config import TrainConfig as TrainConfig
from .loop import TrainingDiverged as TrainingDiverged
from .loop import TrainingInterrupted as TrainingInterrupted
from .loop import train as train
