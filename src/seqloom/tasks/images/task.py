"""The tasks of images: a label for each, and the colours of corrupted patches."""

from __future__ import annotations

from seqloom.protocols import Task
from seqloom.tasks.images.classify import open_image_classifier, open_patch_predictor
from seqloom.tasks.images.training_data import prepare_images, prepare_patches
from seqloom.tasks.setting_names import TRAIN, TRAINED_ON

SETTINGS = TRAINED_ON | TRAIN | {"train.shift"}

IMAGE_CLASSIFICATION = Task(
    name="image-classification",
    summary="an image in; a label out",
    models=("vit",),
    settings=SETTINGS | {"train.head_learning_rate"},
    reading=frozenset(),
    open=open_image_classifier,
    training_data=prepare_images,
    best=("loss", "accuracy"),
    pretrained=True,
    usage="seqloom predict {} image.png",
    counted="images",
)
MASKED_IMAGE_MODELING = Task(
    name="masked-image-modeling",
    summary="an image with corrupted patches in; the colours of these patches out",
    models=("vit",),
    settings=SETTINGS,
    reading=frozenset(),
    open=open_patch_predictor,
    training_data=prepare_patches,
    best=("loss", "accuracy"),
    defaults=lambda content: {"model": {"head": "patches"}},
    verb="evaluate",
    usage="seqloom train image-classification DATA --from {} --output-dir DIR",
    counted="patches",
)
