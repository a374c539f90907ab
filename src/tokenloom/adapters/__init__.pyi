from .iterable import iterable_dataset as iterable_dataset
from .lightning import lightning_data_module as lightning_data_module
from .ray_train import ray_train_loader as ray_train_loader
from .torchdata import stateful_dataloader as stateful_dataloader
from .torchtitan import torchtitan_loader as torchtitan_loader
from .transformers import TransformersCollator as TransformersCollator
