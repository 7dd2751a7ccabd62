"""Models with random weights, and inputs for them, for every architecture that torchvision, timm and transformers list.

Models are small: for each module of timm the network with the smallest size in its name, for each configuration of
transformers two layers. Each of `FAMILIES` yields names and functions that return a module and its inputs.
"""

import inspect
import re

import torch
from torch.utils import _pytree as tree


class Flat(torch.nn.Module):
    """Wraps a model so that it takes tensors by position, in the order of `names`, and returns a list of tensors."""

    def __init__(self, model, names=None, method=None):
        super().__init__()
        self.model, self.names, self.method = model, names, method

    def forward(self, *args):
        call = getattr(self.model, self.method) if self.method else self.model
        out = call(**dict(zip(self.names, args))) if self.names else call(*args)
        out = out.to_tuple() if hasattr(out, "to_tuple") else out
        return [t for t in tree.tree_leaves(out) if isinstance(t, torch.Tensor)]


def torchvision_networks():
    import torchvision.models as m
    sides = {"inception_v3": 299, "raft": 128, "ssd300": 300, "s3d": 224, "mvit": 224, "maxvit": 224, "swin": 224, "vit": 224}
    for name in m.list_models():
        if name.startswith("quantized_"):
            continue

        def make(name=name):
            module = inspect.getmodule(m.get_model_builder(name)).__name__
            kwargs = {"weights": None}
            if "detection" in module or "segmentation" in module:
                kwargs["weights_backbone"] = None
            if name in ("googlenet", "inception_v3"):
                kwargs |= {"aux_logits": False, "init_weights": False}
            model = m.get_model(name, **kwargs).eval()
            side = next((n for key, n in sides.items() if name.startswith(key)), 128)
            if "detection" in module:
                return Detector(model), (torch.rand(3, 160, 160),)
            if "optical_flow" in module:
                return Flat(model), (torch.randn(1, 3, side, side), torch.randn(1, 3, side, side))
            if "video" in module:
                side, frames = (224, 16) if re.match("s3d|mvit|swin", name) else (64, 4)
                return Flat(model), (torch.randn(1, 3, frames, side, side),)
            return Flat(model), (torch.randn(1, 3, side, side),)
        yield name, make


class Detector(torch.nn.Module):
    """The part of a torchvision detector whose sizes are not data-dependent: backbone and heads, without box selection."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, image):
        images, _ = self.model.transform([image])
        features = self.model.backbone(images.tensors)
        features = list(features.values()) if isinstance(features, dict) else [features]
        if hasattr(self.model, "rpn"):
            scores, deltas = self.model.rpn.head(features)
            return [*scores, *deltas, *self.model.rpn.anchor_generator(images, features)]
        return [*self.model.head(features).values(), *self.model.anchor_generator(images, features)]


SMALL = "zepto atto femto pico nano xxs xxxs xxtiny tiny xs mini _s0 micro small _s _b0 10 14 18 26".split()


def timm_networks():
    import timm
    for module in timm.list_modules():
        names = timm.list_models(module=module)
        # The smallest by name: by the first size word, then by the length of the name.
        rank = lambda n: (next((i for i, word in enumerate(SMALL) if word in n), len(SMALL)), len(n))
        for name in sorted(names, key=rank)[:1]:
            yield name, lambda name=name: image_model(name)


def image_model(name):
    import timm
    model = timm.create_model(name, pretrained=False).eval()
    return Flat(model), (torch.randn(1, *model.default_cfg["input_size"]),)


def transformers_networks():
    import shrunk
    yield from shrunk.networks()


def decoders():
    import control_flow
    yield from control_flow.decoders()


def control_flow_programs():
    import control_flow
    yield from control_flow.programs()


# Generators of names and functions. A function returns a module and its inputs and, optionally, further inputs and the dynamic
# shapes.
FAMILIES = {"torchvision": torchvision_networks, "timm": timm_networks, "transformers": transformers_networks,
            "decoders": decoders, "programs": control_flow_programs}
