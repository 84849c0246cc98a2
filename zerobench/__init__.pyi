# For editors and type checkers; at run time each is imported when it is asked for.

from zerobench.api import load as load
from zerobench.api import plan as plan
from zerobench.api import predict as predict
from zerobench.api import run as run
from zerobench.api import tune as tune
from zerobench.tracking.tracker import track as track
from zerobench.tracking.trainer import TrainerCallback as TrainerCallback

__version__: str
