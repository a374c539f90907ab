from .settings import ObjectStorageSettings as ObjectStorageSettings
from .statistics import SourceStatistics as SourceStatistics
from .statistics import storage_statistics as storage_statistics
