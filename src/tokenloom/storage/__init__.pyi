from .addresses import ObjectAddress as ObjectAddress
from .addresses import ObjectClient as ObjectClient
from .addresses import ObjectVersion as ObjectVersion
from .settings import ObjectStorageSettings as ObjectStorageSettings
from .statistics import SourceStatistics as SourceStatistics
from .statistics import storage_statistics as storage_statistics
