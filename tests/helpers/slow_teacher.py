"""A teacher that waits, or hangs once or for ever, before it answers."""

import os
import time

from torch import nn

from radioplat.models.features import Features


class Slow(nn.Module):
    stride = 8

    def __init__(self, hang="", seconds=0.0):
        super().__init__()
        self.conv, self.hang, self.seconds = nn.Conv2d(3, 4, 8, 8), hang, seconds

    def forward(self, images, wanted):
        if not images.is_meta:
            time.sleep(self.seconds)
            if self.hang and os.path.exists(self.hang):
                if not os.path.exists(self.hang + ".always"):
                    os.remove(self.hang)
                time.sleep(600)
        x = self.conv(images)
        return Features(x.mean((2, 3)), x.permute(0, 2, 3, 1))
