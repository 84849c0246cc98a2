# For editors and type checkers; at run time each is imported when it is asked for.

from zerobench.app.api import load as load
from zerobench.app.api import plan as plan
from zerobench.app.api import predict as predict
from zerobench.app.api import run as run
from zerobench.app.api import tune as tune
from zerobench.launch.tracking.tracker import track as track
from zerobench.launch.tracking.trainer import TrainerCallback as TrainerCallback

__version__: str
