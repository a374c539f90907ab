from .collectives import measure_traffic as measure_traffic
from .ranks import set_rank_silence_seconds as set_rank_silence_seconds
