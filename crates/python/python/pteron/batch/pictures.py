"""Pictures in the cells of tables."""

from dataclasses import asdict, dataclass
from typing import Any, Dict, Optional, Tuple, Union

from .. import _pteron
from .program import Column


@dataclass(frozen=True)
class Pictures:
    """How pictures become rows: `decode=Pictures(…)` of a mapper reads PNG and JPEG files from bytes, or from paths if cells are text.

    As in `torchvision`, a picture is resized (bilinear, antialiased), cropped at its center, and each byte `b` becomes
    `(b * scale - mean) / std`; without `resize` and `crop` it is stretched to the sizes of the input.

    Attributes:
        resize: The size of the shorter side, or height and width.
        crop: The height and width of the center that is kept, or one size for both.
        values: `unit` for values from 0 to 1, `signed` for -1 to 1, `imagenet` for mean 0 and standard deviation 1 over ImageNet. If
            None, floating-point inputs get values from 0 to 1, and integer inputs the bytes.
        scale: The factor for the bytes; 1/255 if None.
        mean: What is subtracted: nothing, one value, or one for each channel.
        std: What is divided by, likewise.
        channels_last: Whether the input has its channels last.
    """

    resize: Union[None, int, Tuple[int, int]] = None
    crop: Union[None, int, Tuple[int, int]] = None
    values: Optional[str] = None
    scale: Optional[float] = None
    mean: Tuple[float, ...] = ()
    std: Tuple[float, ...] = ()
    channels_last: bool = False

    def row(self, cell: Any, column: Column) -> "_pteron.Tensor":
        """The picture in a cell as a row of an input."""
        if isinstance(cell, str):
            with open(cell, "rb") as file:
                cell = file.read()
        return _pteron.decode_picture(bytes(cell), column.dtype, list(column.row), self.options())

    def options(self) -> Dict[str, Any]:
        """The attributes, sizes as sequences."""
        options = asdict(self)
        options["resize"] = [self.resize] if isinstance(self.resize, int) else self.resize
        options["crop"] = (self.crop, self.crop) if isinstance(self.crop, int) else self.crop
        return options
