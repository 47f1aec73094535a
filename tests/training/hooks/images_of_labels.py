"""The example of docs/define/extend.md: a step hook, as ``train.hooks: [images_of_labels:ImagesOfLabels]``."""

import torch

from radioplat.training.hooks.step_hook import StepHook


class ImagesOfLabels(StepHook):
    """Counts the images of each label that this rank has seen since the run began."""

    def __init__(self, context):
        self.counts = torch.zeros(context.spec.dataset.num_classes)

    def end_micro_batch(self, step, batch):
        self.counts += torch.bincount(torch.from_numpy(batch.label), minlength=len(self.counts))

    def figures(self):
        return {f"images_of_label/{label}": count for label, count in enumerate(self.counts.tolist())}

    def state_dict(self):
        return {"counts": self.counts}

    def load_state_dict(self, state):
        self.counts = state["counts"]
