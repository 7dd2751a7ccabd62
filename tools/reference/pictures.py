"""Writes testdata/pictures: images, and the tensors that torchvision transforms them into."""

import os

import numpy as np
from PIL import Image
from torchvision import transforms as T

os.chdir(os.path.join(os.path.dirname(__file__), "../../testdata/pictures"))
rng = np.random.default_rng(37)
y, x = np.mgrid[0:29, 0:37]
picture = np.stack([x * 6, y * 8, 128 + 100 * np.sin(x * y / 15)], -1)
picture = np.clip(picture + rng.normal(0, 25, picture.shape), 0, 255).astype(np.uint8)
Image.fromarray(picture).save("colours.png", optimize=True)

image = Image.open("colours.png")
# The same pixels in other formats, and what Pillow decodes from a lossy one.
image.save("colours.bmp")
image.save("colours.webp", lossless=True)
image.save("lossy.webp", quality=80)
np.save("lossy.npy", np.asarray(Image.open("lossy.webp").convert("RGB")).transpose(2, 0, 1).copy())
imagenet = T.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
steps = {
    "imagenet": [T.Resize(24), T.CenterCrop(20), T.ToTensor(), imagenet],
    "stretched": [T.Resize((23, 18)), T.ToTensor()],
    "larger": [T.Resize((41, 53)), T.ToTensor(), T.Normalize([0.5], [0.5])],
    "padded": [T.CenterCrop((32, 20)), T.ToTensor()],
    "grey": [T.Grayscale(), T.Resize((9, 11)), T.ToTensor()],
}
for name, transforms in steps.items():
    np.save(f"{name}.npy", T.Compose(transforms)(image).numpy())

opacity = (x * y % 256).astype(np.uint8)
Image.fromarray(np.dstack([picture, opacity])[:13, :17], "RGBA").save("opacity.png", optimize=True)
Image.open("opacity.png").save("opacity.webp", lossless=True, exact=True)
transforms = T.Compose([T.Resize((11, 9)), T.ToTensor()])
np.save("opacity.npy", transforms(Image.open("opacity.png")).numpy())
