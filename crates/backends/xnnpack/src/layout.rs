//! The two layouts of a value: in a payload, images are channels-last (NHWC); in programs and graphs they are
//! channels-first (NCHW). `lower`, `raise` and `recover` all convert between them only where a node needs it.
//!
//! A value that is not an image has one order of dimensions, which counts as the layout of the side that it is on: NHWC
//! in [`LayoutViews`], which translates payloads, and NCHW in `lower`, which makes them.
//!
//! Most transposes of a payload are there because an exporter turned an image around and back. So a transpose between
//! the two layouts moves nothing here: its result is the same tensor, known in the other layout. Only a node that reads
//! a value in a layout that it is not known in adds a permute, once: [`LayoutCache`] has both from then on.

use crate::error::{Result, fail};

/// The permutation from NCHW to NHWC: for each NHWC dimension its index in NCHW.
pub(crate) const NCHW_TO_NHWC: [usize; 4] = [0, 2, 3, 1];
/// The permutation from NHWC to NCHW: for each NCHW dimension its index in NHWC.
pub(crate) const NHWC_TO_NCHW: [usize; 4] = [0, 3, 1, 2];

/// A value in one of its layouts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Layout<Id> {
    /// In the payload's dimension order.
    Nhwc(Id),
    /// An image in NCHW order.
    Nchw(Id),
}

impl<Id: Copy> Layout<Id> {
    pub(crate) fn id(self) -> Id {
        let (Self::Nhwc(id) | Self::Nchw(id)) = self;
        id
    }

    /// This layout, but of the value `id`.
    #[cfg(feature = "compile")]
    pub(crate) fn with_id(self, id: Id) -> Self {
        match self {
            Self::Nhwc(_) => Self::Nhwc(id),
            Self::Nchw(_) => Self::Nchw(id),
        }
    }

    /// The index in this layout of a dimension of the payload.
    pub(crate) fn dim(self, dim: usize) -> usize {
        match self {
            Self::Nhwc(_) => dim,
            Self::Nchw(_) => NCHW_TO_NHWC.get(dim).copied().unwrap_or(dim),
        }
    }
}

/// The layouts in which a value is available.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayoutCache<Id> {
    pub(crate) nhwc: Option<Id>,
    pub(crate) nchw: Option<Id>,
}

impl<Id> Default for LayoutCache<Id> {
    fn default() -> Self {
        Self { nhwc: None, nchw: None }
    }
}

impl<Id> LayoutCache<Id> {
    pub(crate) fn set(&mut self, layout: Layout<Id>) {
        match layout {
            Layout::Nhwc(id) => self.nhwc = Some(id),
            Layout::Nchw(id) => self.nchw = Some(id),
        }
    }
}

/// The values of a payload in the graph or program that it is translated to, in the layouts that nodes need.
///
/// `raise` and `recover` implement it for graphs with known sizes and for programs with symbolic ones. What only
/// depends on layouts is here.
pub(crate) trait LayoutViews {
    type Id: Copy;

    /// The layouts of a value.
    fn layouts(&mut self, v: usize) -> &mut LayoutCache<Self::Id>;

    /// A value that no node writes (a constant), in the payload's order.
    fn load_constant(&mut self, v: usize) -> Result<Self::Id>;

    fn rank(&self, id: Self::Id) -> usize;

    /// The rank of a value of the payload.
    fn rank_of(&mut self, v: usize) -> Result<usize>;

    fn permute(&mut self, id: Self::Id, order: &[usize]) -> Result<Self::Id>;

    /// A vector viewed as `[channels, 1, 1]`, which broadcasts with NCHW images as the vector does with NHWC ones.
    fn per_channel(&mut self, vector: Self::Id) -> Result<Self::Id>;

    /// The payload's id of a value.
    fn payload_id(&self, v: usize) -> u32;

    /// A value in the layout in which it is available: NHWC, the payload's order, unless only NCHW was computed.
    fn available_layout(&mut self, v: usize) -> Result<Layout<Self::Id>> {
        match *self.layouts(v) {
            LayoutCache { nchw: Some(nchw), nhwc: None } => Ok(Layout::Nchw(nchw)),
            _ => self.nhwc(v).map(Layout::Nhwc),
        }
    }

    /// Whether a value is available as an NCHW image only.
    fn is_only_nchw(&mut self, v: usize) -> bool {
        matches!(self.layouts(v), LayoutCache { nchw: Some(_), nhwc: None })
    }

    /// A value in the payload's order.
    fn nhwc(&mut self, v: usize) -> Result<Self::Id> {
        let nhwc = match *self.layouts(v) {
            LayoutCache { nhwc: Some(nhwc), .. } => return Ok(nhwc),
            LayoutCache { nchw: Some(nchw), .. } => self.permute(nchw, &NCHW_TO_NHWC)?,
            LayoutCache { .. } => self.load_constant(v)?,
        };
        self.layouts(v).nhwc = Some(nhwc);
        Ok(nhwc)
    }

    /// A value as an NCHW image.
    fn nchw(&mut self, v: usize) -> Result<Self::Id> {
        if let Some(nchw) = self.layouts(v).nchw {
            return Ok(nchw);
        }
        let nhwc = self.nhwc(v)?;
        if self.rank(nhwc) != 4 {
            return fail(format!("value %{} is no image", self.payload_id(v)));
        }
        let nchw = self.permute(nhwc, &NHWC_TO_NCHW)?;
        self.layouts(v).nchw = Some(nchw);
        Ok(nchw)
    }

    /// Values in a common layout: NCHW if one of them is only available in NCHW.
    fn to_common_layout(&mut self, vs: &[usize]) -> Result<(Vec<Self::Id>, Layout<Self::Id>)> {
        let is_nchw = vs.iter().any(|&v| self.is_only_nchw(v));
        let ids = vs.iter().map(|&v| if is_nchw { self.nchw(v) } else { self.nhwc(v) });
        let ids = ids.collect::<Result<Vec<_>>>()?;
        let layout = if is_nchw { Layout::Nchw(ids[0]) } else { Layout::Nhwc(ids[0]) };
        Ok((ids, layout))
    }

    /// Two values that are broadcast with each other, in a common layout: NCHW if one of them is only available in NCHW and each is an
    /// image, a vector with a value for each channel, or a scalar; otherwise NHWC.
    fn broadcast_operands(&mut self, vs: [usize; 2]) -> Result<([Self::Id; 2], Layout<Self::Id>)> {
        let ranks = [self.rank_of(vs[0])?, self.rank_of(vs[1])?];
        let is_nchw = vs.iter().any(|&v| self.is_only_nchw(v));
        if !is_nchw || ranks.iter().any(|rank| !matches!(rank, 0 | 1 | 4)) {
            let ids = [self.nhwc(vs[0])?, self.nhwc(vs[1])?];
            return Ok((ids, Layout::Nhwc(ids[0])));
        }
        let mut operand = |i: usize| match ranks[i] {
            4 => self.nchw(vs[i]),
            1 => {
                let vector = self.nhwc(vs[i])?;
                self.per_channel(vector)
            }
            _ => self.nhwc(vs[i]),
        };
        let ids = [operand(0)?, operand(1)?];
        Ok((ids, Layout::Nchw(ids[0])))
    }

    /// A value with permuted dimensions. A transpose between NHWC and NCHW moves no elements: the same graph value is returned under the
    /// other layout.
    fn transposed_layout(&mut self, v: usize, perm: &[usize]) -> Result<Layout<Self::Id>> {
        Ok(match self.available_layout(v)? {
            Layout::Nchw(id) if *perm == NHWC_TO_NCHW => Layout::Nhwc(id),
            Layout::Nchw(id) => {
                let perm: Vec<usize> = perm.iter().map(|&d| NCHW_TO_NHWC[d]).collect();
                Layout::Nhwc(self.permute(id, &perm)?)
            }
            Layout::Nhwc(id) if *perm == NCHW_TO_NHWC => Layout::Nchw(id),
            Layout::Nhwc(id) => Layout::Nhwc(self.permute(id, perm)?),
        })
    }
}
