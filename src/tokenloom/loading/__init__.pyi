from .digest import check_same_batches as check_same_batches
from .loader import build_dataloader as build_dataloader
from .read_ahead import loader_statistics as loader_statistics
from .thread_loader import DataWait as DataWait
from .thread_loader import ThreadLoader as ThreadLoader
