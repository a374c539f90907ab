from .block_shuffle import BlockShuffle as BlockShuffle
from .block_shuffle import Mixing as Mixing
from .packs import BestFitReport as BestFitReport
from .packs import best_fit_report as best_fit_report
from .sentences import build_blocks_mapping as build_blocks_mapping
from .sentences import build_mapping as build_mapping
from .windows import Spans as Spans
