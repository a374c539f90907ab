from .blended import BlendedDataset as BlendedDataset
from .build_plan import BuildPlan as BuildPlan
from .build_plan import plan_build as plan_build
from .dataset_builder import BlendedMegatronDatasetBuilder as BlendedMegatronDatasetBuilder
from .spec import get_blend_from_list as get_blend_from_list
from .spec import parse_blend as parse_blend
