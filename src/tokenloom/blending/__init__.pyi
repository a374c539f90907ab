from .blended import BlendedDataset as BlendedDataset
from .builder import BlendedMegatronDatasetBuilder as BlendedMegatronDatasetBuilder
from .plan import BuildPlan as BuildPlan
from .plan import plan_build as plan_build
from .spec import get_blend_from_list as get_blend_from_list
from .spec import parse_blend as parse_blend
