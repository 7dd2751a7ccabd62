//! The two forms of a payload's value: in the payload's dimension order, where images are channels-last (NHWC), and for
//! images also channels-first (NCHW), as the operators of programs have them.

use crate::error::{Result, fail};

/// The permutation from NCHW to NHWC: for each NHWC dimension its index in NCHW.
pub(crate) const NCHW_TO_NHWC: [usize; 4] = [0, 2, 3, 1];
/// The permutation from NHWC to NCHW: for each NCHW dimension its index in NHWC.
pub(crate) const NHWC_TO_NCHW: [usize; 4] = [0, 3, 1, 2];

/// A value in one of its forms.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Form<Id> {
    /// In the payload's dimension order.
    Plain(Id),
    /// An image in NCHW order.
    Image(Id),
}

impl<Id: Copy> Form<Id> {
    pub(crate) fn id(self) -> Id {
        let (Self::Plain(id) | Self::Image(id)) = self;
        id
    }

    /// Another value in this form.
    #[cfg(feature = "compile")]
    pub(crate) fn with(self, id: Id) -> Self {
        match self {
            Self::Plain(_) => Self::Plain(id),
            Self::Image(_) => Self::Image(id),
        }
    }

    /// The index in this form of a dimension of the payload.
    pub(crate) fn dim(self, dim: usize) -> usize {
        match self {
            Self::Plain(_) => dim,
            Self::Image(_) => NCHW_TO_NHWC.get(dim).copied().unwrap_or(dim),
        }
    }
}

/// The forms in which a value is available.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Forms<Id> {
    pub(crate) plain: Option<Id>,
    pub(crate) image: Option<Id>,
}

impl<Id> Default for Forms<Id> {
    fn default() -> Self {
        Self { plain: None, image: None }
    }
}

impl<Id> Forms<Id> {
    pub(crate) fn set(&mut self, form: Form<Id>) {
        match form {
            Form::Plain(id) => self.plain = Some(id),
            Form::Image(id) => self.image = Some(id),
        }
    }
}

/// Holds the values of a payload and converts between their forms on demand.
pub(crate) trait HasForms {
    type Id: Copy;

    /// The forms of a value.
    fn forms(&mut self, v: usize) -> &mut Forms<Self::Id>;

    /// A value that no node writes (a constant), in the payload's order.
    fn unwritten(&mut self, v: usize) -> Result<Self::Id>;

    fn rank(&self, id: Self::Id) -> usize;

    fn permute(&mut self, id: Self::Id, order: &[usize; 4]) -> Result<Self::Id>;

    /// The payload's id of a value.
    fn id_of(&self, v: usize) -> u32;

    /// A form in which the value is already available. Prefers the payload's order; a constant is in that order.
    fn form(&mut self, v: usize) -> Result<Form<Self::Id>> {
        match *self.forms(v) {
            Forms { image: Some(image), plain: None } => Ok(Form::Image(image)),
            _ => self.plain(v).map(Form::Plain),
        }
    }

    /// A value in the payload's order.
    fn plain(&mut self, v: usize) -> Result<Self::Id> {
        let plain = match *self.forms(v) {
            Forms { plain: Some(plain), .. } => return Ok(plain),
            Forms { image: Some(image), .. } => self.permute(image, &NCHW_TO_NHWC)?,
            Forms { .. } => self.unwritten(v)?,
        };
        self.forms(v).plain = Some(plain);
        Ok(plain)
    }

    /// A value as an NCHW image.
    fn image(&mut self, v: usize) -> Result<Self::Id> {
        if let Some(image) = self.forms(v).image {
            return Ok(image);
        }
        let plain = self.plain(v)?;
        if self.rank(plain) != 4 {
            return fail(format!("value %{} is no image", self.id_of(v)));
        }
        let image = self.permute(plain, &NHWC_TO_NCHW)?;
        self.forms(v).image = Some(image);
        Ok(image)
    }
}
