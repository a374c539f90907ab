from .assembled import RetroSettings as RetroSettings
from .assembled import get_retro_datasets as get_retro_datasets
from .block_files import BlockPathMap as BlockPathMap
from .chunk_database import DBDataset as DBDataset
from .dataset import RetroDataset as RetroDataset
from .gpt_chunks import GPTChunkDataset as GPTChunkDataset
from .neighbor_table import NeighborTable as NeighborTable
from .project import RetroProject as RetroProject
