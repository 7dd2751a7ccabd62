//! The two forms of a value of a payload: as the payload has it, and, of an image, in the order of dimensions that the
//! operators of programs have.

use crate::error::{Result, fail};

/// For each dimension of an image of a payload, `[N, H, W, C]`, that of an image `[N, C, H, W]`.
pub(crate) const FROM_IMAGE: [usize; 4] = [0, 2, 3, 1];
/// For each dimension of an image `[N, C, H, W]` the payload's.
pub(crate) const TO_IMAGE: [usize; 4] = [0, 3, 1, 2];

/// A value in one of its forms.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Form<Id> {
    /// As the payload has it.
    Plain(Id),
    /// As an image `[N, C, H, W]`.
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

    /// Where a dimension of the payload is in this form.
    pub(crate) fn dim(self, dim: usize) -> usize {
        match self {
            Self::Plain(_) => dim,
            Self::Image(_) => FROM_IMAGE.get(dim).copied().unwrap_or(dim),
        }
    }
}

/// The forms in which a value is there.
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

/// Whoever keeps the values of a payload. A form that is missing is made when something needs it.
pub(crate) trait HasForms {
    type Id: Copy;

    /// The forms of a value.
    fn forms(&mut self, v: usize) -> &mut Forms<Self::Id>;

    /// A value that no node has written, as the payload has it.
    fn unwritten(&mut self, v: usize) -> Result<Self::Id>;

    fn rank(&self, id: Self::Id) -> usize;

    fn permute(&mut self, id: Self::Id, order: &[usize; 4]) -> Result<Self::Id>;

    /// What a payload calls a value.
    fn id_of(&self, v: usize) -> u32;

    /// The form in which a value is there already; a constant is as the payload has it.
    fn form(&mut self, v: usize) -> Result<Form<Self::Id>> {
        match *self.forms(v) {
            Forms { image: Some(image), plain: None } => Ok(Form::Image(image)),
            _ => self.plain(v).map(Form::Plain),
        }
    }

    /// A value as the payload has it.
    fn plain(&mut self, v: usize) -> Result<Self::Id> {
        let plain = match *self.forms(v) {
            Forms { plain: Some(plain), .. } => return Ok(plain),
            Forms { image: Some(image), .. } => self.permute(image, &FROM_IMAGE)?,
            Forms { .. } => self.unwritten(v)?,
        };
        self.forms(v).plain = Some(plain);
        Ok(plain)
    }

    /// A value as an image.
    fn image(&mut self, v: usize) -> Result<Self::Id> {
        if let Some(image) = self.forms(v).image {
            return Ok(image);
        }
        let plain = self.plain(v)?;
        if self.rank(plain) != 4 {
            return fail(format!("value %{} is no image", self.id_of(v)));
        }
        let image = self.permute(plain, &TO_IMAGE)?;
        self.forms(v).image = Some(image);
        Ok(image)
    }
}
