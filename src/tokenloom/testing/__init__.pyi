from .datasets import check_dataset as check_dataset
from .orders import check_order as check_order
from .report import CheckReport as CheckReport
from .stores import check_store as check_store
