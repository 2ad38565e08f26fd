from . import calculator as calculator
from .calculator import Calculator as Calculator
from .encoders import BitsNumberEncoder as BitsNumberEncoder
from .encoders import FourierNumberEncoder as FourierNumberEncoder
from .encoders import MagnitudeNumberEncoder as MagnitudeNumberEncoder
from .errors import InputError as InputError
from .injection.adapter import load_adapter as load_adapter
from .injection.adapter import save_adapter as save_adapter
from .injection.attach import attach as attach
from .injection.attach import detach as detach
from .injection.config import AniConfig as AniConfig
from .injection.decisions import NumberDecision as NumberDecision
from .injection.inspection import forced_gates as forced_gates
from .injection.inspection import inspect as inspect
from .injection.number_batch import NumberBatch as NumberBatch
from .numbers import Number as Number
from .numbers import NumberScanner as NumberScanner
from .probing.curve import LayerSelection as LayerSelection
from .probing.run import select_layer as select_layer
from .probing.selection import PAPER_LAYERS as PAPER_LAYERS
from .serving.merge import merge as merge

__version__: str
