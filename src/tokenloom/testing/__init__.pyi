from .datasets import check_dataset as check_dataset
from .report import CheckReport as CheckReport
