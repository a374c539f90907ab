from .checks import CheckReport as CheckReport
from .dataset_checks import check_dataset as check_dataset
from .order_checks import check_order as check_order
from .store_checks import check_store as check_store
