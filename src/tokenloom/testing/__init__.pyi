from .checks import CheckReport as CheckReport
from .datasets import check_dataset as check_dataset
from .orders import check_order as check_order
from .stores import check_store as check_store
