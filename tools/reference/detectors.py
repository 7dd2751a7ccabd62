#!/usr/bin/env python3
"""Exports torchvision's detectors, with random weights, whole: from the image to the boxes, scores and labels that remain.

    python tools/reference/detectors.py FOLDER [ssdlite fasterrcnn retinanet fcos]
    pteron verify --archives FOLDER

Writes an archive of some 10 to 130 MB for each. torch.export refuses three places of torchvision, which branch on the number of boxes or take
it for a number that is known; they are replaced here by the same computation without that. Needs torch and torchvision.
"""

import inspect
import pathlib
import sys

import torch
import torchvision.models.detection as detection
import torchvision.ops.boxes as boxes
import torchvision.ops.poolers as poolers

from archives import write_case

OPTIONS = {"weights": None, "weights_backbone": None, "num_classes": 5}
SMALL = {**OPTIONS, "min_size": 64, "max_size": 96}
DETECTORS = {
    "ssdlite": lambda: detection.ssdlite320_mobilenet_v3_large(**OPTIONS),
    "fasterrcnn": lambda: detection.fasterrcnn_mobilenet_v3_large_320_fpn(**SMALL),
    "retinanet": lambda: detection.retinanet_resnet50_fpn(**SMALL),
    "fcos": lambda: detection.fcos_resnet50_fpn(**SMALL),
}


def batched_nms(corners, scores, classes, threshold):
    """Moves the boxes of each class to a place of their own, so that they overlap no others."""
    farthest = torch.cat([corners.flatten(), corners.new_zeros(1)]).amax()
    offsets = classes.to(corners) * (farthest + 1)
    return boxes.nms(corners + offsets[:, None], scores, threshold)


def replace_unexportable():
    boxes.batched_nms = batched_nms
    source = inspect.getsource(poolers._multiscale_roi_align).replace("@torch.fx.wrap", "")
    exec(source.replace("len(rois)", "rois.shape[0]"), poolers.__dict__)


class Detector(torch.nn.Module):
    """A detector of one image, with its results in alphabetical order."""

    def __init__(self, detector):
        super().__init__()
        self.detector = detector

    def forward(self, image):
        found = self.detector([image])[0]
        return tuple(found[name] for name in sorted(found))


def main():
    folder = pathlib.Path(sys.argv[1])
    replace_unexportable()
    for name in sys.argv[2:] or DETECTORS:
        torch.manual_seed(0)
        write_case(folder / name, Detector(DETECTORS[name]()).eval(), (torch.rand(3, 64, 80),))


if __name__ == "__main__":
    main()
