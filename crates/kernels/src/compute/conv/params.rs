/// The order of an image's dimensions in memory, dense in that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Batch, channels, then space: NCHW, as PyTorch's default.
    ChannelsFirst,
    /// Batch, space, then channels: NHWC, as PyTorch's `channels_last`.
    ChannelsLast,
}

impl Layout {
    /// The strides of the channels and of the pixels of an image, in elements.
    pub(crate) fn strides(self, channels: usize, pixels: usize) -> (usize, usize) {
        match self {
            Layout::ChannelsFirst => (pixels, 1),
            Layout::ChannelsLast => (1, channels),
        }
    }
}

/// The parameters of a convolution, without the sizes of its images. There are three spatial dimensions, depth,
/// height and width; a dimension that an operator lacks has kernel, stride and dilation 1 and padding 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvParams {
    /// The number of channels of the input.
    pub in_channels: usize,
    /// The number of channels of the output.
    pub out_channels: usize,
    /// The number of groups, which divides `in_channels` and `out_channels`.
    pub groups: usize,
    /// The size of the kernel, in taps.
    pub kernel: [usize; 3],
    /// Distance between neighbouring positions of the kernel, in input pixels (for a transposed convolution: output
    /// pixels).
    pub stride: [usize; 3],
    /// The number of zeros before the first pixel; the padding after the last follows from the size of the output. For
    /// a transposed convolution: the number of output pixels that are left out before the first.
    pub padding: [usize; 3],
    /// The distance between neighbouring taps, in input pixels (for a transposed convolution: output pixels).
    pub dilation: [usize; 3],
    /// Whether it is a transposed convolution.
    pub transposed: bool,
}

impl ConvParams {
    /// A plain 2-D convolution with a kernel of `[height, width]`: one group, stride and dilation 1, no
    /// padding.
    pub fn conv2d(in_channels: usize, out_channels: usize, kernel: [usize; 2]) -> Self {
        Self {
            in_channels,
            out_channels,
            groups: 1,
            kernel: [1, kernel[0], kernel[1]],
            stride: [1; 3],
            padding: [0; 3],
            dilation: [1; 3],
            transposed: false,
        }
    }

    /// The number of taps.
    pub fn tap_count(&self) -> usize {
        self.kernel.iter().product()
    }

    /// The size of the output, with as much padding after the last pixel as before the first; for a transposed
    /// convolution, with `output_padding` more pixels. `None` if the kernel does not fit, or a size overflows.
    pub fn output_size(&self, input: [usize; 3], output_padding: [usize; 3]) -> Option<[usize; 3]> {
        let mut size = [0; 3];
        for d in 0..3 {
            let reach = self.dilation[d].checked_mul(self.kernel[d].checked_sub(1)?)?.checked_add(1)?;
            let pad = self.padding[d].checked_mul(2)?;
            size[d] = if self.transposed {
                // Subtract last: for an empty input `(input - 1) * stride` is negative, which output padding may make
                // up for.
                let end = input[d].checked_mul(self.stride[d])?.checked_add(reach)?;
                end.checked_add(output_padding[d])?.checked_sub(self.stride[d])?.checked_sub(pad)?
            } else {
                input[d].checked_add(pad)?.checked_sub(reach)? / self.stride[d].max(1) + 1
            };
        }
        Some(size)
    }

    /// The number of weights, of shape `[out, in / groups, kernel]` or, if transposed, `[in, out / groups, kernel]`.
    pub fn weight_count(&self) -> usize {
        self.in_channels * self.out_channels / self.groups.max(1) * self.tap_count()
    }

    /// Panics if the parameters are inconsistent or too large.
    pub(crate) fn check(&self) {
        assert!(self.groups > 0, "a convolution has at least one group");
        assert!(
            self.in_channels.is_multiple_of(self.groups) && self.out_channels.is_multiple_of(self.groups),
            "{} groups do not divide {} and {} channels",
            self.groups,
            self.in_channels,
            self.out_channels
        );
        assert!(self.stride.iter().all(|&s| s > 0), "a stride is at least 1");
        assert!(self.dilation.iter().all(|&d| d > 0), "a dilation is at least 1");
        let small = |v: [usize; 3]| v.iter().all(|&x| x <= 1 << 30);
        assert!(
            small(self.kernel) && small(self.stride) && small(self.padding) && small(self.dilation),
            "kernel, stride, padding and dilation are at most 2^30"
        );
    }

    /// Whether the convolution is depthwise: one filter and one output channel for each input channel.
    pub(crate) fn is_depthwise(&self) -> bool {
        !self.transposed
            && self.tap_count() > 0
            && self.groups == self.in_channels
            && self.groups == self.out_channels
    }
}

/// The sizes of images in one execution of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvFrame {
    /// The number of images.
    pub batch: usize,
    /// Depth, height, width of an input image.
    pub input: [usize; 3],
    /// Depth, height, width of an output image. Output pixels that no input pixel contributes to are zero before the
    /// epilogue.
    pub output: [usize; 3],
}

impl ConvFrame {
    pub(crate) fn in_pixels(&self) -> usize {
        self.input.iter().product()
    }
    pub(crate) fn out_pixels(&self) -> usize {
        self.output.iter().product()
    }
}
