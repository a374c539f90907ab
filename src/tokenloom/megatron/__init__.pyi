from .args import config_from_args as config_from_args
from .installation import InstallReport as InstallReport
from .installation import install as install
from .installation import report as report
from .installation import uninstall as uninstall
